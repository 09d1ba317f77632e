// Draws each <div data-figure="id"> with Plotly from the data-spec of the element with that id, in
// the page's theme; again when the theme changes, or when a refresh brought other data.
// The table beside a figure says the same; without this script it is all there is.

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const drawn = new Map(); // element → { text, spec }

function theme() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen === "dark" || chosen === "light") return chosen;
  return dark.matches ? "dark" : "light";
}

function draw(element) {
  const { spec } = drawn.get(element);
  const colours = spec.themes[theme()];
  const data = spec.data.map((trace) => {
    const marker = colours.markers[trace.meta];
    if (!marker) return trace;
    const line = { ...marker.line, width: trace.marker.line.width };
    return { ...trace, marker: { ...marker, line } };
  });
  window.Plotly.react(element, data, { ...spec.layout, template: colours.template }, spec.config);
}

function look() {
  for (const element of document.querySelectorAll("[data-figure]")) {
    const text = document.getElementById(element.dataset.figure)?.dataset.spec;
    if (!text || drawn.get(element)?.text === text) continue;
    drawn.set(element, { text, spec: JSON.parse(text) });
    draw(element);
  }
}

function repaint() {
  for (const element of drawn.keys()) if (element.isConnected) draw(element);
}

function start() {
  const boxes = document.querySelectorAll("[data-figure-box]");
  if (!window.Plotly) {
    for (const box of boxes) box.setAttribute("data-failed", "");
    return;
  }
  look();
  dark.addEventListener("change", repaint);
  new MutationObserver(repaint).observe(document.documentElement, {
    attributes: true,
    attributeFilter: ["data-theme"],
  });
  document.addEventListener("htmx:afterSettle", look);
  document.addEventListener("htmx:oobAfterSwap", look);
}

if (document.readyState === "complete") start();
else window.addEventListener("load", start);
