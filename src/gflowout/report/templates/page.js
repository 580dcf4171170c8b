// The page's own behaviour: switches of methods, colours, pointers and keys in plots, sorting.
(() => {
  "use strict";
  const { plots } = JSON.parse(document.getElementById("plots").textContent);
  const tip = document.getElementById("tip");
  const said = document.getElementById("said");
  const hidden = new Set(); // names of methods that are switched off, on the whole page
  const PAPER = "\u0000paper"; // no method has this name
  const drawn = new Map();

  const make = (tag, text, parent) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  };

  // Plots

  const shown = (series) => !hidden.has(series.name) && !(series.paper && hidden.has(PAPER));

  function redraw(some) {
    const widths = some.map((area) => area.clientWidth); // all before the first change: one layout
    some.forEach((area, place) => {
      const old = drawn.get(area);
      const focused = old && document.activeElement === old.svg;
      const reader = Plots.draw(area, plots[area.dataset.plot], shown, widths[place]);
      drawn.set(area, { ...reader, width: widths[place], index: -1 });
      if (focused) reader.svg.focus();
    });
  }

  function point(area, index, x, y, aloud) {
    const reader = drawn.get(area);
    reader.index = index;
    if (index < 0 || !reader.count) { reader.cursor.setAttribute("d", ""); tip.hidden = true; return; }
    const { head, rows, mark, x: px, y: py } = reader.at(index);
    reader.cursor.setAttribute("d", mark);
    tip.replaceChildren(make("b", head));
    for (const row of rows) {
      const line = make("div", undefined, tip);
      const box = make("i", undefined, line);
      if (row.slot !== undefined) box.className = `s${row.slot}`;
      line.append(make("em", row.name), make("span", row.text));
    }
    if (aloud) said.textContent = `${head}: ${rows.map((row) => `${row.name} ${row.text}`).join(", ")}`;
    const frame = reader.svg.getBoundingClientRect();
    const ratio = frame.width / reader.svg.viewBox.baseVal.width;
    const [cx, cy] = [x ?? frame.left + px * ratio, y ?? frame.top + py * ratio];
    tip.hidden = false;
    const [w, h] = [tip.offsetWidth, tip.offsetHeight];
    const left = cx + 16 + w > innerWidth - 6 ? cx - 16 - w : cx + 16;
    tip.style.left = `${Math.max(6, Math.min(innerWidth - w - 6, left))}px`;
    tip.style.top = `${Math.max(6, Math.min(innerHeight - h - 6, cy - h / 2))}px`;
  }

  function listen(area) {
    const follow = (event) => {
      const reader = drawn.get(area);
      if (!reader.count) return;
      const frame = reader.svg.getBoundingClientRect();
      const ratio = reader.svg.viewBox.baseVal.width / frame.width;
      const index = reader.find((event.clientX - frame.left) * ratio, (event.clientY - frame.top) * ratio);
      point(area, index, event.clientX, event.clientY);
    };
    area.addEventListener("pointermove", follow);
    area.addEventListener("pointerdown", follow);
    area.addEventListener("pointerleave", () => point(area, -1));
    area.addEventListener("focusout", () => point(area, -1));
    area.addEventListener("keydown", (event) => {
      const reader = drawn.get(area);
      const across = reader.columns || 0;
      const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across,
        Home: -reader.count, End: reader.count };
      if (event.key === "Escape") point(area, -1);
      if (!steps[event.key] || !reader.count) return;
      event.preventDefault();
      const start = reader.index < 0 ? (steps[event.key] > 0 ? -1 : reader.count) : reader.index;
      const next = reader.index < 0 && across ? 0 : start + steps[event.key];
      point(area, Math.max(0, Math.min(reader.count - 1, next)), undefined, undefined, true);
    });
  }

  // A plot in a folded study is drawn when it is opened: until then it has no width.
  const areas = [...document.querySelectorAll("[data-plot]")];
  const visible = (area) => area.checkVisibility();
  redraw(areas.filter(visible));
  areas.forEach(listen);
  const watch = new ResizeObserver((entries) => {
    redraw(entries.map(({ target }) => target).filter((area) =>
      visible(area) && Math.abs(area.clientWidth - (drawn.get(area)?.width ?? 0)) > 1));
  });
  areas.forEach((area) => watch.observe(area));
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details.more, details.study")) openUp(details);
  });

  // Studies: unfolded one by one, all at once, or by a link to them.

  const studies = [...document.querySelectorAll("details.study")];
  function openUp(details) {
    details.open = true;
    redraw(areas.filter((area) => details.contains(area) && !drawn.has(area)));
  }
  for (const details of studies)
    details.addEventListener("toggle", () => { if (details.open) openUp(details); });
  const unfold = document.getElementById("unfold");
  if (unfold) {
    unfold.hidden = false;
    unfold.addEventListener("click", () => studies.forEach(openUp));
  }
  const reveal = (hash) => studies
    .filter((details) => hash && details.parentElement.id === hash.slice(1)).forEach(openUp);
  for (const link of document.querySelectorAll('a[href^="#"]'))
    link.addEventListener("click", () => reveal(link.hash));
  addEventListener("hashchange", () => reveal(location.hash));
  reveal(location.hash);

  // The numbers of a plot are written when they are asked for.
  for (const details of document.querySelectorAll("details[data-figures]"))
    details.addEventListener("toggle", () => {
      if (!details.open || details.querySelector("table")) return;
      const scroll = make("div", undefined, details);
      scroll.className = "scroll";
      scroll.tabIndex = 0;
      const table = make("table", undefined, scroll);
      const [heads, ...rows] = Plots.figures(plots[details.dataset.figures]);
      const line = make("tr", undefined, make("thead", undefined, table));
      heads.forEach((head) => { make("th", head, line).scope = "col"; });
      const body = make("tbody", undefined, table);
      for (const row of rows) {
        const tr = make("tr", undefined, body);
        row.forEach((cell, i) => make(i ? "td" : "th", cell, tr));
      }
    });

  // Switches: one state for the whole page, so that a method is on or off everywhere.

  const chips = [...document.querySelectorAll(".chip[data-slot]")];
  const nameOf = (chip) => ("paper" in chip.dataset ? PAPER : chip.dataset.name);

  function update() {
    for (const chip of chips) chip.setAttribute("aria-pressed", String(!hidden.has(nameOf(chip))));
    redraw(areas.filter((area) => drawn.has(area) && plots[area.dataset.plot].series));
  }

  for (const chip of chips) {
    chip.prepend(Plots.sample(chip, Number(chip.dataset.slot), "paper" in chip.dataset));
    const name = nameOf(chip);
    chip.addEventListener("click", () => {
      if (!hidden.delete(name)) hidden.add(name);
      fade(null);
      update();
    });
    const fade = (on) => {
      for (const area of areas) for (const g of area.querySelectorAll(".series")) {
        const own = name === PAPER ? g.classList.contains("paper") : g.dataset.name === name;
        g.classList.toggle("faded", on !== null && !own);
      }
    };
    const start = () => { if (!hidden.has(name)) fade(true); };
    chip.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse") start(); });
    chip.addEventListener("pointerleave", () => fade(null));
  }
  for (const button of document.querySelectorAll(".chip.act")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      for (const chip of button.parentElement.querySelectorAll(".chip[data-slot]"))
        if (button.dataset.act === "all") hidden.delete(nameOf(chip));
        else hidden.add(nameOf(chip));
      update();
    });
  }

  // Colours: as the system has them, or as chosen.

  const theme = document.getElementById("theme");
  const themes = ["system", "light", "dark"];
  const stored = () => { try { return localStorage.getItem("gflowout-theme"); } catch { return null; } };
  function dress(name) {
    if (name === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    theme.textContent = `Theme: ${name}`;
    theme.dataset.theme = name;
    try { localStorage.setItem("gflowout-theme", name); } catch { /* files may have no storage */ }
  }
  dress(themes.includes(stored()) ? stored() : "system");
  theme.hidden = false;
  theme.addEventListener("click", () => dress(themes[(themes.indexOf(theme.dataset.theme) + 1) % 3]));

  // Tables are sorted by a click on a heading; rows of the paper stay below ours.

  for (const table of document.querySelectorAll("table.sorted")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      const button = make("button", head.textContent);
      button.type = "button";
      button.title = "Sort";
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "descending" ||
          (!head.hasAttribute("aria-sort") && (head.dataset.better === "low" || place === 0));
        heads.forEach((each) => each.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "ascending" : "descending");
        for (const body of table.tBodies) {
          const rows = [...body.rows].filter((row) => !row.classList.contains("source"));
          const key = (row) => (place ? Number(row.cells[place].dataset.value ?? NaN) : Number(row.dataset.index));
          rows.sort((a, b) => {
            const [p, q] = [key(a), key(b)];
            if (Number.isNaN(p) || Number.isNaN(q)) return Number.isNaN(p) - Number.isNaN(q);
            return down ? p - q : q - p;
          });
          body.append(...rows);
        }
      });
    });
  }

  // Contents: where the reader is.

  const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) {
      links.forEach((a) => a.removeAttribute("aria-current"));
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  document.querySelectorAll("section[id]").forEach((section) => seen.observe(section));
  document.documentElement.dataset.ready = "true";
})();
