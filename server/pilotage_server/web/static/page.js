// The few things that pages do by themselves. All of them work without this file too, with more clicks.
"use strict";

// The box in the head of a table marks all of its rows.
document.addEventListener("change", (event) => {
  if (!event.target.matches("[data-mark-all]")) return;
  for (const box of event.target.closest("form").querySelectorAll('input[name="id"]')) {
    box.checked = event.target.checked;
  }
  event.stopPropagation();
});

// New output scrolls into sight unless the reader has scrolled up; the page keeps its last part.
const LONGEST_OUTPUT = 1000000;
document.addEventListener("htmx:sseBeforeMessage", (event) => {
  const stream = event.target;
  if (stream.id === "stream") {
    stream.dataset.follows = stream.scrollHeight - stream.scrollTop - stream.clientHeight < 40 ? "1" : "";
  }
});
document.addEventListener("htmx:sseMessage", (event) => {
  const stream = event.target;
  if (stream.id !== "stream") return;
  while (stream.textContent.length > LONGEST_OUTPUT && stream.childNodes.length > 1) stream.firstChild.remove();
  if (stream.dataset.follows) stream.scrollTop = stream.scrollHeight;
});

// A hidden page gives its connection back, as browsers have six for each server. When it is shown again, it is loaded
// anew.
let source = null;
document.addEventListener("htmx:sseOpen", (event) => {
  source = event.detail.source;
});
document.addEventListener("visibilitychange", () => {
  if (!source || source.readyState === EventSource.CLOSED && !source.isPaused) return;
  if (document.hidden) {
    source.isPaused = true;
    source.close();
  } else if (source.isPaused) {
    location.reload();
  }
});
