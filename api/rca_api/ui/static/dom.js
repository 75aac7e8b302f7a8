// Builds elements. Text becomes text nodes only, so the name of a job cannot become markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an HTML element.
 * @param {string} tag
 * @param {object} attributes  `class`, `on...` listeners, and attributes; null and false leave one out.
 * @param {...(Node|string|number|null|Array)} children
 */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Make an SVG element. */
export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

/** Make a labelled form control; gives the label and the control. */
export function field(text, control, hint = null) {
  const id = `field-${Math.random().toString(36).slice(2)}`;
  control.id = id;
  const parts = [h("label", { for: id }, text), control];
  if (hint !== null) {
    control.setAttribute("aria-describedby", `${id}-hint`);
    parts.push(h("div", { id: `${id}-hint`, class: "quiet" }, hint));
  }
  return parts;
}

/**
 * Make a table that becomes a list of cards on narrow screens.
 * @param {string} caption
 * @param {string[]} columns  The first column heads its row.
 * @param {Array[]} rows  Cells: text or nodes.
 */
export function table(caption, columns, rows) {
  // Roles are written out because `display: block` takes them away.
  const head = columns.map((name) => h("th", { scope: "col", role: "columnheader" }, name));
  const body = rows.map((cells) =>
    h("tr", { role: "row" }, cells.map((cell, at) =>
      at === 0
        ? h("th", { scope: "row", role: "rowheader" }, cell)
        : h("td", { role: "cell", "data-label": columns[at] }, cell),
    )),
  );
  return h("table", { class: "stack", role: "table" },
    h("caption", {}, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)),
    h("tbody", { role: "rowgroup" }, body),
  );
}

/** Make a list of terms and their texts. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, text]) => text !== null && text !== "").map(([term, text]) => [
    h("dt", {}, term), h("dd", {}, Array.isArray(text) ? text.map((line) => h("p", {}, line)) : text),
  ]));
}

/** Say something to readers of the screen. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

/**
 * Ask before something that changes what others see.
 * @returns {Promise<string|null>} The reason (empty if none is wanted), null if it was given up.
 */
export function confirmed(title, text, { reason = false, verb = "Confirm" } = {}) {
  return new Promise((resolve) => {
    const input = h("input", { name: "reason", minlength: 3, maxlength: 500, required: true });
    const dialog = h("dialog", { "aria-label": title },
      h("h2", {}, title), h("p", {}, text), reason ? field("Reason", input, "It is stored.") : null,
      h("div", { class: "actions" },
        h("button", { type: "button", class: "main", onclick: () => {
          if (!reason || input.reportValidity()) dialog.close("yes");
        } }, verb),
        h("button", { type: "button", onclick: () => dialog.close("no") }, "Keep as it is"),
      ),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes" ? input.value : null);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
