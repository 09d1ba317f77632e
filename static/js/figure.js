// Draws each <div data-figure="url"> with Plotly from the JSON behind the address, in the page's
// theme, and draws it again when the theme or, after a refresh of the page's regions, the data changed.
// The table beside a figure says the same; without this script it is all there is.

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const drawn = new Map(); // element → { text, spec }
const AGAIN_AFTER_MS = 9000;
let lastLook = 0;

function theme() {
  const chosen = document.documentElement.dataset.theme;
  return chosen === "dark" || chosen === "light" ? chosen : dark.matches ? "dark" : "light";
}

function themed(spec) {
  const colours = spec.themes[theme()];
  const data = spec.data.map((trace) => {
    const marker = colours.markers[trace.meta];
    return marker ? { ...trace, marker } : trace;
  });
  return { data, layout: { ...spec.layout, template: colours.template } };
}

function draw(element) {
  const spec = drawn.get(element).spec;
  const { data, layout } = themed(spec);
  window.Plotly.react(element, data, layout, spec.config);
}

async function load(element) {
  let text;
  try {
    const answer = await fetch(element.dataset.figure, { headers: { Accept: "application/json" } });
    if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
    text = await answer.text();
  } catch {
    // What is drawn stays; the page's own strip says how old it is. Nothing drawn yet: the table does.
    if (!drawn.has(element)) element.closest("[data-figure-box]")?.setAttribute("data-failed", "");
    return;
  }
  if (drawn.get(element)?.text === text) return;
  drawn.set(element, { text, spec: JSON.parse(text) });
  element.closest("[data-figure-box]")?.removeAttribute("data-failed");
  draw(element);
}

function look() {
  lastLook = Date.now();
  for (const element of drawn.keys()) if (!element.isConnected) drawn.delete(element);
  document.querySelectorAll("[data-figure]").forEach(load);
}

function repaint() {
  for (const element of drawn.keys()) draw(element);
}

function start() {
  if (!window.Plotly) return;
  look();
  dark.addEventListener("change", repaint);
  new MutationObserver(repaint).observe(document.documentElement, {
    attributes: true,
    attributeFilter: ["data-theme"],
  });
  document.addEventListener("htmx:afterSettle", () => {
    if (Date.now() - lastLook > AGAIN_AFTER_MS) look();
  });
}

if (document.readyState === "complete") start();
else window.addEventListener("load", start);
