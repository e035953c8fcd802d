// The what-if's sliders. Each stops at round values; the number beside it takes any, and is what is sent.
// htmx listens to the form's "input" and asks the server, the newest move only.
const form = document.querySelector("[data-what-if]");
const pairs = [...form.querySelectorAll("[data-slider]")].map((root) => {
  const range = root.querySelector("input[type=range]");
  return { number: root.querySelector("input[type=number]"), range, values: range.dataset.values.split(" ").map(Number) };
});
const text = (value) => value.toLocaleString("en", { maximumSignificantDigits: 7, useGrouping: false });

function nearest(values, wanted) {
  let best = 0;
  values.forEach((value, i) => { if (Math.abs(value - wanted) < Math.abs(values[best] - wanted)) best = i; });
  return best;
}

function say({ range, values, number }) {
  const value = number.value === "" ? "none" : `${number.value} ${range.dataset.unit}`;
  range.setAttribute("aria-valuetext", value);
  range.classList.toggle("moved", number.value !== number.dataset.start);
}

function follow(pair) {
  if (pair.number.value !== "") pair.range.value = nearest(pair.values, Number(pair.number.value));
  say(pair);
}

for (const pair of pairs) {
  pair.range.hidden = false;
  pair.range.addEventListener("input", () => {
    pair.number.value = text(pair.values[pair.range.value]);
    say(pair);
  });
  pair.number.addEventListener("input", () => follow(pair));
  follow(pair);
}
form.querySelectorAll("[data-without-scripts]").forEach((button) => (button.hidden = true));
// "Back to the plan": where the plan stands, also on a page whose address says another place.
form.addEventListener("reset", (event) => {
  event.preventDefault();
  pairs.forEach((pair) => { pair.number.value = pair.number.dataset.start; follow(pair); });
  form.dispatchEvent(new Event("input", { bubbles: true }));
});
// Busy (429), or overtaken by another page (409): words that ask again by themselves. What this page overtakes itself
// it has given up already.
document.body.addEventListener("htmx:beforeSwap", (event) => {
  if (![409, 429].includes(event.detail.xhr.status)) return;
  event.detail.isError = false;
  event.detail.shouldSwap = event.detail.target.matches("#answer, [data-awaits]");
});
