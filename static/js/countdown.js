// Counts down each <… data-countdown="seconds"> from when it was first seen; a refresh brings the
// next figure of the server. Nothing is announced: the words beside it say by when.
const until = new WeakMap();

function words(seconds) {
  if (seconds <= 0) return "any moment now";
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const at = units.findIndex(([, size]) => seconds >= size);
  const [unit, size] = units[at];
  const next = units[at + 1];
  const rest = next ? Math.floor((seconds % size) / next[1]) : 0;
  const second = rest ? ` ${String(rest).padStart(next[0] === "h" ? 1 : 2, "0")} ${next[0]}` : "";
  return `${Math.floor(seconds / size)} ${unit}${second} left`;
}

function count() {
  for (const element of document.querySelectorAll("[data-countdown]")) {
    if (!until.has(element)) {
      until.set(element, performance.now() + Number(element.dataset.countdown) * 1000);
    }
    const left = Math.ceil((until.get(element) - performance.now()) / 1000);
    element.textContent = words(left);
  }
}

setInterval(count, 1000);
