// The theme button: as the system has it, light, dark. The choice is kept.

const THEMES = ["auto", "light", "dark"];

export function themes(button) {
  function set(theme) {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
    localStorage.setItem("nextn-theme", theme);
  }
  const kept = localStorage.getItem("nextn-theme");
  let at = Math.max(THEMES.indexOf(kept), 0);
  set(THEMES[at]);
  button.addEventListener("click", () => {
    at = (at + 1) % THEMES.length;
    set(THEMES[at]);
  });
}
