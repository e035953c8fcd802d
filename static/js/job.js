// A job's page: the percentage in the title, the log kept where its reader left it, announcements that do not
// chatter, and two events for the rest of the page: "figures-changed" when more was measured, "job-ended" once.
const title = document.title;
const MIN_REDRAW_MS = 2000;
let log = { top: 0, atEnd: true, open: null };
let last = read();
let drawnAt = 0;
let said = "";

function read() {
  const live = document.getElementById("job-live");
  return live ? { ...live.dataset, active: ["queued", "running"].includes(live.dataset.status) } : null;
}

function show(state) {
  document.title = state.active ? `${state.status === "queued" ? "queued" : state.percent + " %"} · ${title}` : title;
  const words = state.status === "running" ? `running, ${Math.floor(state.percent / 25) * 25} percent` : state.status;
  if (words !== said) {
    if (said) document.getElementById("job-announce").textContent = words;
    said = words;
  }
}

function tell(name) {
  document.body.dispatchEvent(new CustomEvent(name, { bubbles: true }));
}

function scrollLog() {
  const box = document.getElementById("job-log");
  if (box) box.scrollTop = log.atEnd ? box.scrollHeight : log.top;
}

document.body.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.target.id !== "job-live") return;
  const box = document.getElementById("job-log");
  if (box) log = { top: box.scrollTop, atEnd: box.scrollTop + box.clientHeight >= box.scrollHeight - 8, open: box.parentElement.open };
});

document.body.addEventListener("htmx:afterSettle", () => {
  const now = read();
  if (!now || !last) return;
  const box = document.getElementById("job-log-box");
  if (box && log.open !== null) box.open = log.open;
  scrollLog();
  show(now);
  const ended = last.active && !now.active;
  if (ended || (now.count !== last.count && Date.now() - drawnAt >= MIN_REDRAW_MS)) {
    drawnAt = Date.now();
    last = now;
    tell("figures-changed");
  } else {
    last = { ...now, count: last.count };
  }
  if (ended) tell("job-ended");
});

if (last) {
  show(last);
  scrollLog();
}
