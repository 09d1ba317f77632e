// Single keys: / jump, g then a letter, j k rows, Enter opens, [ ] pages, . pause, ? help, Esc closes.
// Off inside fields; off altogether without data-keys on the body (the reader's profile).
const enabled = document.body.hasAttribute("data-keys");
const help = document.getElementById("help");
let going = 0;
let current = null;

function rows() {
  return [...document.querySelectorAll("[data-row]")];
}

function inField(target) {
  return target instanceof Element && Boolean(target.closest("input, select, textarea, [contenteditable], dialog"));
}

function step(by) {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((row) => row.id === current);
  const next = all[Math.max(0, Math.min(all.length - 1, at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by))];
  for (const row of all) row.toggleAttribute("data-row-current", row === next);
  current = next.id;
  const link = next.querySelector("a");
  if (link) link.focus();
  next.scrollIntoView({ block: "nearest" });
}

function follow(selector) {
  const link = document.querySelector(selector);
  if (link) link.click();
}

function pressed(event) {
  if (event.key === "Escape") {
    if (document.activeElement instanceof HTMLElement && inField(document.activeElement)) document.activeElement.blur();
    return;
  }
  if (!enabled || event.ctrlKey || event.metaKey || event.altKey || inField(event.target)) return;
  if (Date.now() - going < 1500 && /^[a-z]$/.test(event.key)) {
    going = 0;
    event.preventDefault();
    follow(`[data-go="${event.key}"]`);
    return;
  }
  going = 0;
  switch (event.key) {
    case "/": {
      const boxes = [...document.querySelectorAll("[data-jump] input")].filter((box) => box.offsetParent);
      const menu = document.getElementById("menu");
      if (!boxes.length && menu) menu.open = true;
      const box = boxes[0] || (menu && menu.querySelector("[data-jump] input"));
      if (box) box.focus();
      break;
    }
    case "g": going = Date.now(); break;
    case "j": step(1); break;
    case "k": step(-1); break;
    case "Enter": {
      if (event.target instanceof Element && event.target.closest("a, button, summary")) return;
      const row = current && document.getElementById(current);
      const link = row && row.querySelector("a");
      if (!link) return;
      link.click();
      break;
    }
    case "[": follow('[data-key="newer"]'); break;
    case "]": follow('[data-key="older"]'); break;
    case ".": document.dispatchEvent(new Event("rollcall:pause")); break;
    case "?": if (help && !help.open) help.showModal(); break;
    default: return;
  }
  event.preventDefault();
}

document.addEventListener("keydown", pressed);
