// Saves a figure as an SVG file that stands alone: <button data-svg-of="selector" data-svg-name="name">.
// Plotly draws its own; of our drawings the styles become attributes, and words beside become text.
const NS = "http://www.w3.org/2000/svg";
const PAINT = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "opacity",
  "stop-color", "stop-opacity", "font-family", "font-size", "font-weight", "text-anchor", "paint-order",
];

function paint(from, to, keep) {
  const style = getComputedStyle(from);
  if (style.display === "none" && !keep) {
    to.remove();
    return;
  }
  for (const name of PAINT) to.setAttribute(name, style.getPropertyValue(name).replaceAll('"', "'"));
  for (const name of ["class", "role", "aria-label"]) to.removeAttribute(name);
  const copies = [...to.children];
  [...from.children].forEach((child, k) => paint(child, copies[k], keep || from.localName === "defs"));
}

function made(name, attributes) {
  const element = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// The fills that are used, from the page's own definitions.
function definitions(drawing) {
  const used = new XMLSerializer().serializeToString(drawing);
  const defs = made("defs", {});
  for (const fill of document.querySelectorAll("svg.defs [id^='fill-']")) {
    if (!used.includes(`#${fill.id}`)) continue;
    const copy = fill.cloneNode(true);
    paint(fill, copy, true);
    defs.append(copy);
  }
  return defs;
}

function words(box, into) {
  const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
  const frame = box.getBoundingClientRect();
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const holder = node.parentElement;
    const text = node.textContent.trim();
    if (!text || holder.closest("svg") || !holder.offsetParent) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const place = range.getBoundingClientRect();
    const style = getComputedStyle(holder);
    const line = made("text", {
      x: place.left - frame.left,
      y: place.top - frame.top + place.height * 0.78,
      fill: style.color,
      "font-family": style.fontFamily.replaceAll('"', "'"),
      "font-size": style.fontSize,
      "font-weight": style.fontWeight,
    });
    line.textContent = text;
    into.append(line);
  }
}

function drawn(box) {
  const frame = box.getBoundingClientRect();
  const file = made("svg", { xmlns: NS, width: frame.width, height: frame.height });
  const paper = getComputedStyle(document.documentElement).backgroundColor;
  file.append(made("rect", { width: "100%", height: "100%", fill: paper }));
  for (const svg of box.querySelectorAll(":scope > svg")) {
    const place = svg.getBoundingClientRect();
    const copy = svg.cloneNode(true);
    paint(svg, copy, false);
    const at = { x: place.left - frame.left, y: place.top - frame.top, width: place.width, height: place.height };
    for (const [key, value] of Object.entries(at)) copy.setAttribute(key, value);
    copy.setAttribute("overflow", "visible");
    file.prepend(definitions(copy));
    file.append(copy);
  }
  words(box, file);
  return new XMLSerializer().serializeToString(file);
}

async function textOf(box) {
  if (!box.matches("[data-figure]")) return drawn(box);
  const { width, height } = box.getBoundingClientRect();
  const url = await window.Plotly.toImage(box, { format: "svg", width, height });
  return decodeURIComponent(url.slice(url.indexOf(",") + 1));
}

document.documentElement.toggleAttribute("data-saves-svg", true);
document.addEventListener("click", async (event) => {
  const button = event.target instanceof Element && event.target.closest("[data-svg-of]");
  const box = button && document.querySelector(button.dataset.svgOf);
  if (!box) return;
  const url = URL.createObjectURL(new Blob([await textOf(box)], { type: "image/svg+xml" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `${button.dataset.svgName}.svg`;
  link.click();
  URL.revokeObjectURL(url);
});
