// The jump box as a combobox of eight; without this file it is a plain form.
for (const form of document.querySelectorAll("[data-jump]")) {
  const input = form.querySelector("input");
  const list = document.createElement("ul");
  let asked = 0;
  let timer = 0;
  let hits = [];
  let chosen = -1;
  list.className = "jump-list";
  list.id = `${input.id}-list`;
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "What you can jump to");
  list.hidden = true;
  form.append(list);
  input.setAttribute("role", "combobox");
  input.setAttribute("aria-controls", list.id);
  input.setAttribute("aria-autocomplete", "list");
  input.setAttribute("aria-expanded", "false");

  function show(open) {
    list.hidden = !open;
    input.setAttribute("aria-expanded", String(open));
    if (!open) {
      chosen = -1;
      input.removeAttribute("aria-activedescendant");
    }
  }

  function choose(at) {
    chosen = at;
    [...list.children].forEach((item, k) => item.setAttribute("aria-selected", String(k === at)));
    if (at >= 0) {
      input.setAttribute("aria-activedescendant", list.children[at].id);
      list.children[at].scrollIntoView({ block: "nearest" });
    } else input.removeAttribute("aria-activedescendant");
  }

  function draw(rows) {
    hits = rows.slice(0, 8);
    list.replaceChildren(
      ...hits.map((hit, k) => {
        const item = document.createElement("li");
        const name = document.createElement("bdi");
        const note = document.createElement("span");
        item.id = `${list.id}-${k}`;
        item.setAttribute("role", "option");
        item.setAttribute("aria-selected", "false");
        name.textContent = hit.text;
        note.className = "meta";
        note.textContent = hit.note;
        item.append(name, note);
        item.addEventListener("pointerdown", (event) => {
          event.preventDefault();
          window.location.assign(hit.url);
        });
        return item;
      }),
    );
    choose(-1);
    show(hits.length > 0);
  }

  async function ask() {
    const turn = ++asked;
    const q = input.value.trim();
    if (!q) {
      show(false);
      return;
    }
    try {
      const answer = await fetch(`${form.action.replace(/\/$/, "")}.json?${new URLSearchParams({ q })}`, {
        headers: { Accept: "application/json" },
      });
      if (turn === asked && answer.ok) draw((await answer.json()).rows);
    } catch {
      show(false);
    }
  }

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(ask, 150);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      show(false);
      return;
    }
    if (list.hidden) return;
    if (event.key === "ArrowDown") choose((chosen + 1) % hits.length);
    else if (event.key === "ArrowUp") choose((chosen - 1 + hits.length) % hits.length);
    else if (event.key === "Enter" && chosen >= 0) window.location.assign(hits[chosen].url);
    else return;
    event.preventDefault();
  });
  input.addEventListener("blur", () => show(false));
}
