"use strict";
// Shows a film: one moment at a time, chosen by a slider, by buttons or by the arrow keys. All texts go in as text, never as markup.
for (const film of document.querySelectorAll(".film")) {
  const data = JSON.parse(film.querySelector("script").textContent);
  const slider = film.querySelector("input"), moment = film.querySelector(".moment"), stage = film.querySelector(".stage");
  const detail = film.querySelector(".detail");
  const failing = data.frames.findIndex((frame) => frame.failing);

  const element = (tag, text, names, parent) => {
    const made = document.createElement(tag);
    if (text) made.textContent = text;
    if (names) made.className = names;
    if (parent) parent.append(made);
    return made;
  };
  const explained = (made, text) => {
    made.tabIndex = 0;
    made.title = text;
    made.setAttribute("aria-label", text);
    for (const event of ["focus", "mouseenter", "click"]) made.addEventListener(event, () => { detail.textContent = text; });
  };
  const NAMES_MAX = 12; // requests without a block table that are named; the others are counted
  const SIGNS = { right: "✓", wrong: "✗", tainted: "!", "not-yet": "·", unread: "?", left: "–", null: "∅", fold: "…" };

  const cell = (one, row) => {
    const made = element("td", "", "cell " + one.looks + (one.marked ? " marked" : ""), row);
    element("b", one.looks === "fold" ? "…" : (one.page < 0 ? "no page" : "page " + one.page), "", made);
    element("span", SIGNS[one.looks] + " " + (one.claim || ""), "", made);
    const told = one.looks === "fold" ? one.claim
      : one.page < 0 ? "A read needs " + one.claim + "; here the block table has ended."
      : "The block table says of page " + one.page + ": " + one.claim + ". The ledger knows: page " + one.page + " " + one.known + ".";
    explained(made, (one.marked ? "Here it fails. " : "") + told);
  };
  // A frame has numbers: of its rows, which have those of their cells, and of the pages of its pools.
  const lanes = (frame) => {
    const table = element("table", "", "lanes");
    element("span", "Block tables, column by column", "stays", element("caption", "", "soft", table));
    const head = (text) => {
      const whole = element("th", "", "", element("tr", "", "request", table));
      whole.colSpan = 99;
      element("span", text, "stays", whole);
    };
    const without = new Map();
    const failed = ([, , rows]) => rows.some((row) => data.rows[row][1].some((one) => data.cells[one].marked));
    const ordered = [...frame.lanes.filter(failed), ...frame.lanes.filter((lane) => !failed(lane))];
    for (const [r, doing, rows] of ordered) {
      if (!rows.length) {
        without.set(doing, [...(without.get(doing) || []), r]);
        continue;
      }
      head("request " + r + " " + doing);
      for (const [group, cells] of rows.map((row) => data.rows[row])) {
        const line = element("tr", "", "", table);
        element("th", data.groups[group], "soft", line).scope = "row";
        for (const one of cells) cell(data.cells[one], line);
      }
    }
    for (const [doing, names] of without) {
      const more = names.length > NAMES_MAX ? " and " + (names.length - NAMES_MAX) + " more" : "";
      head((names.length > 1 ? "requests " : "request ") + names.slice(0, NAMES_MAX).join(", ") + more + ": " + doing);
    }
    return table;
  };
  const pools = (frame) => {
    const all = element("div");
    frame.pools.forEach((pages, index) => {
      if (!pages.length) return;
      element("h4", data.pools[index] + ": every page that was ever touched, as the ledger knows it", "soft", all);
      const list = element("ul", "", "pool", all);
      for (const one of pages.map((page) => data.pages[page])) {
        const made = element("li", one.page + " " + one.state, one.state + (one.marked ? " marked" : ""), list);
        explained(made, "Page " + one.page + " (" + one.state + ") " + one.known + ".");
      }
    });
    return all;
  };
  const show = (index) => {
    const at = Math.max(0, Math.min(data.frames.length - 1, index)), frame = data.frames[at];
    slider.value = at;
    slider.setAttribute("aria-valuetext", frame.title);
    moment.textContent = at + 1 + " of " + data.frames.length + ": " + frame.title + (frame.failing ? " (here it fails)" : "");
    moment.className = "moment" + (frame.failing ? " failing" : "");
    const scroller = element("div", "", "wide");
    scroller.append(lanes(frame));
    stage.replaceChildren(scroller, pools(frame));
    const mark = stage.querySelector(".marked");
    if (mark && scroller.contains(mark)) {
      const names = mark.parentElement.firstElementChild.offsetWidth, spare = scroller.clientWidth - names - mark.offsetWidth;
      scroller.scrollLeft = mark.offsetLeft - names - Math.max(spare / 2, 6);
    }
    detail.textContent = mark ? mark.title : "Hover or focus a cell: what the engine claims, and what the ledger knows.";
  };
  slider.max = data.frames.length - 1;
  slider.addEventListener("input", () => show(Number(slider.value)));
  film.querySelector(".back").addEventListener("click", () => show(Number(slider.value) - 1));
  film.querySelector(".on").addEventListener("click", () => show(Number(slider.value) + 1));
  film.querySelector(".failed").addEventListener("click", () => show(failing));
  film.querySelector(".failed").disabled = failing < 0;
  show(failing < 0 ? data.frames.length - 1 : failing);
}
