// Numbers under their names: <div><dt>name</dt><dd>value</dd></div> in a <dl>.

/** Fills `list` with [name, value] pairs; what was there stays in place. */
export function show(list, pairs) {
  while (list.children.length > pairs.length) list.lastChild.remove();
  pairs.forEach(([name, value], i) => {
    let row = list.children[i];
    if (!row) {
      row = document.createElement("div");
      row.append(document.createElement("dt"), document.createElement("dd"));
      list.append(row);
    }
    if (row.firstChild.textContent !== name) row.firstChild.textContent = name;
    if (row.lastChild.textContent !== value) row.lastChild.textContent = value;
  });
}

/** A number with `digits` after the point; a dash for what is not known yet. */
export function number(value, digits = 0) {
  if (!Number.isFinite(value)) return "–";
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export const percent = (value) => (Number.isFinite(value) ? `${number(100 * value)} %` : "–");
