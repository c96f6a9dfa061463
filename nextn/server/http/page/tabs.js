// Tabs: a button shows its panel and hides the others.

export function tabs(list) {
  const buttons = [...list.querySelectorAll("[role=tab]")];
  for (const button of buttons) {
    button.addEventListener("click", () => {
      for (const each of buttons) {
        each.setAttribute("aria-selected", String(each === button));
        document.getElementById(each.getAttribute("aria-controls")).hidden = each !== button;
      }
    });
  }
}
