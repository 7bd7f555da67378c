"use strict";
// Shows a film: one moment at a time, chosen by a slider, by buttons, by the arrow keys or by a link. All texts go in as text, never as markup.
const NAMES_MAX = 12; // requests without a block table that are named; the others are counted
const SIGNS = { right: "✓", wrong: "✗", tainted: "!", "not-yet": "·", unread: "?", left: "–", null: "∅", fold: "…" };
const MARKS = { cause: "the cause", found: "here it fails", both: "the cause" };

const element = (tag, text, names, parent) => {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (names) made.className = names;
  if (parent) parent.append(made);
  return made;
};

const play = (film) => {
  film.classList.add("plays");
  const data = JSON.parse(film.querySelector("script").textContent);
  const part = (name) => film.querySelector(name);
  const slider = part("input"), moment = part(".moment"), stage = part(".stage"), detail = part(".detail"), picked = part(".picked");
  const failing = data.frames.findIndex((frame) => frame.failing);
  const names = data.links.map((link) => "#" + film.dataset.name + link);
  const operations = [...film.querySelectorAll(".trace li")];

  const link = (index, text, parent) => {
    const made = element(index < 0 ? "span" : "a", text, "", parent);
    if (index >= 0) made.href = names[index];
    return made;
  };
  const explained = (made, text, pool, page) => {
    made.tabIndex = 0;
    made.title = text;
    made.setAttribute("aria-label", text);
    for (const event of ["focus", "mouseenter", "click"]) made.addEventListener(event, () => { detail.textContent = text; });
    const life = data.lives.find((one) => one.pool === pool && one.page === page);
    if (life) made.addEventListener("click", () => showLife(life));
  };
  const showLife = (life) => {
    picked.replaceChildren();
    element("h3", "Life of " + life.title, "", picked);
    if (life.left_out) element("p", life.left_out + " further events are left out.", "soft", picked);
    const list = element("ol", "", "life", picked);
    for (const [index, step, until, text, mark] of life.events) {
      const line = element("li", "", mark, list);
      const when = element("span", "", "when", line);
      link(index, "step " + step, when);
      when.append(until ? "–" + until : "");
      const what = element("span", text + " ", "", line);
      if (mark) element("strong", "← " + MARKS[mark], "", what);
    }
  };

  const cell = (one, row, pool) => {
    const made = element("td", "", "cell " + one.looks + (one.marked ? " marked" : ""), row);
    element("b", one.looks === "fold" ? "…" : (one.page < 0 ? "no page" : "page " + one.page), "", made);
    element("span", SIGNS[one.looks] + " " + (one.claim || ""), "", made);
    const text = one.looks === "fold" ? one.claim
      : one.page < 0 ? "A read needs " + one.claim + "; here the block table has ended."
      : "The block table says of page " + one.page + ": " + one.claim + ". The ledger knows: page " + one.page + " " + one.known + ".";
    explained(made, (one.marked ? "Here it fails. " : "") + text, pool, one.page);
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
        for (const one of cells) cell(data.cells[one], line, data.pool_of[group]);
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
    frame.pools.forEach((numbers, index) => {
      if (!numbers.length) return;
      element("h4", data.pools[index] + ": every page that was ever touched, as the ledger knows it", "soft", all);
      const list = element("ul", "", "pool", all), pages = numbers.map((number) => data.pages[number]);
      for (const one of pages) {
        const made = element("li", one.page + " " + one.state, one.state + (one.marked ? " marked" : ""), list);
        explained(made, "Page " + one.page + " (" + one.state + ": " + data.states[one.state] + ") " + one.known + ".", data.pool_ids[index], one.page);
      }
      const key = element("p", "", "key soft", all);
      for (const state of new Set(pages.map((one) => one.state))) element("span", state + ": " + data.states[state], state, key);
    });
    return all;
  };

  const show = (index) => {
    const at = Math.max(0, Math.min(data.frames.length - 1, index)), frame = data.frames[at];
    slider.value = at;
    slider.setAttribute("aria-valuetext", frame.title);
    // The moments are counted where there are no operations, so that a reader has one number of each thing.
    const known = data.operations[at] >= 0;
    const place = known ? "operation " + (data.operations[at] + 1) + " · " : at + 1 + " of " + data.frames.length + ": ";
    moment.textContent = place + frame.title + (frame.failing ? " (here it fails) " : " ");
    moment.className = "moment" + (frame.failing ? " failing" : "");
    link(at, "link", moment).className = "here";
    const scroller = element("div", "", "wide");
    scroller.append(lanes(frame));
    stage.replaceChildren(scroller, pools(frame));
    const mark = stage.querySelector(".marked");
    if (mark && scroller.contains(mark)) {
      const names = mark.parentElement.firstElementChild.offsetWidth, spare = scroller.clientWidth - names - mark.offsetWidth;
      scroller.scrollLeft = mark.offsetLeft - names - Math.max(spare / 2, 6);
    }
    detail.textContent = mark ? mark.title : "Hover or focus a cell: what the engine claims, and what the ledger knows. Click it for the life of its page.";
    follow(at);
  };
  // The operation that brought the moment about, and the column of its step.
  const follow = (at) => {
    operations.forEach((line, index) => {
      if (index !== data.operations[at]) return line.removeAttribute("aria-current");
      line.setAttribute("aria-current", "step");
      const list = line.parentElement; // only the list is scrolled, never the page
      if (line.offsetTop < list.scrollTop || line.offsetTop + line.offsetHeight > list.scrollTop + list.clientHeight) {
        list.scrollTop = line.offsetTop - list.clientHeight / 2;
      }
    });
    for (const step of film.querySelectorAll(".sheet th a")) {
      step.parentElement.toggleAttribute("aria-current", step.hash === names[at]);
    }
  };
  const choose = (index) => {
    show(index);
    try {
      history.replaceState(null, "", names[slider.value]);
    } catch { /* a page within another one may not change its address */ }
  };
  const linked = () => names.indexOf(decodeURIComponent(location.hash));

  slider.max = data.frames.length - 1;
  slider.addEventListener("input", () => choose(Number(slider.value)));
  part(".back").addEventListener("click", () => choose(Number(slider.value) - 1));
  part(".on").addEventListener("click", () => choose(Number(slider.value) + 1));
  part(".failed").addEventListener("click", () => choose(failing));
  part(".failed").disabled = failing < 0;
  const caused = part(".caused");
  if (caused) caused.addEventListener("click", () => choose(data.cause));
  if (caused) caused.disabled = data.cause < 0;
  // Links within the film move the slider and leave the page where it is.
  film.addEventListener("click", (event) => {
    const to = event.target.closest("a");
    if (!to || !names.includes(to.hash)) return;
    event.preventDefault();
    choose(names.indexOf(to.hash));
  });
  // The names are places on the sheet for browsers without scripts. Here they are moments.
  for (const step of film.querySelectorAll(".sheet [id]")) step.removeAttribute("id");
  const jump = () => {
    if (linked() < 0) return;
    show(linked());
    film.scrollIntoView();
  };
  addEventListener("hashchange", jump);
  show(failing < 0 ? data.frames.length - 1 : failing);
  jump();
};
document.querySelectorAll(".film").forEach(play);
