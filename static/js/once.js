// What cannot be taken back is asked about first, in the button's own words (without scripts it is done at once).
document.addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.ask;
  if (question && !window.confirm(question)) event.stopImmediatePropagation(), event.preventDefault();
});
// A form is sent once: a second click while the first answer is on its way would start the same job twice.
const AGAIN_MS = 5000; // an answer that never came must not lock the form
const sentAt = new WeakMap();

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  const now = performance.now();
  if (now - (sentAt.get(form) ?? -Infinity) < AGAIN_MS) event.preventDefault();
  else sentAt.set(form, now);
});
// Back to a page that the browser kept as it was: it may be sent again.
window.addEventListener("pageshow", (event) => event.persisted && document.querySelectorAll("form").forEach((form) => sentAt.delete(form)));
