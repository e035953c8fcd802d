// Buttons [data-copy="id"] copy the text of that element. They are hidden until this script can serve them.
function ready(root) {
  root.querySelectorAll("[data-copy][hidden]").forEach((button) => (button.hidden = false));
}

async function copy(button) {
  const source = document.getElementById(button.dataset.copy);
  let done = true;
  try {
    await navigator.clipboard.writeText(source.textContent);
  } catch {
    // No clipboard without TLS or permission: select it, so that Ctrl-C does.
    getSelection().selectAllChildren(source);
    done = document.execCommand("copy");
  }
  const label = button.textContent;
  button.textContent = done ? "Copied" : "Press Ctrl-C";
  document.getElementById("copy-announce").textContent = done ? "Copied to the clipboard" : "Selected: press Ctrl-C to copy";
  setTimeout(() => (button.textContent = label), 1500);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button && !button.disabled) copy(button);
});
document.body.append(Object.assign(document.createElement("p"), { id: "copy-announce", className: "visually-hidden" }));
document.getElementById("copy-announce").setAttribute("role", "status");
ready(document);
document.body.addEventListener("htmx:load", (event) => ready(event.detail.elt));
