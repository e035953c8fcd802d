// A form whose page shows what it comes to: an answer to what it said a moment ago would undo what was chosen since,
// so it is not shown. The request for what it says now is on its way.
const live = document.querySelector("[data-live-form]");
const form = live?.closest("form");
let changes = 0;
let asked = 0;

form?.addEventListener("change", () => { changes += 1; }, true);
live?.addEventListener("htmx:beforeRequest", () => { asked = changes; });
live?.addEventListener("htmx:beforeSwap", (event) => {
  if (asked !== changes) event.detail.shouldSwap = false;
});
