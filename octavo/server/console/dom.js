/** Small helpers over the DOM. Text only ever goes in as text, never as markup. */

/** An element; attributes named on... are listeners, and those that are false or null are left out. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** Add text at the end. A long text becomes several nodes, so that adding to it stays cheap. */
export function appendText(node, text) {
  const last = node.lastChild;
  if (last instanceof Text && last.length < 1000) last.appendData(text);
  else node.append(text);
}

/** Set text, and touch nothing if it is there already. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A button that copies what `read` returns, and says so for a moment. */
export function copyButton(read, label = "Copy") {
  const button = el("button", { type: "button", class: "quiet" }, label);
  button.addEventListener("click", async () => {
    const copied = await copy(read());
    button.textContent = copied ? "Copied" : "Could not copy";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

async function copy(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return false;
    }
  }
  // Without HTTPS there is no clipboard, but a selection can be copied.
  const area = el("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  return copied;
}
