"use strict";
(() => {
  const root = document.documentElement, board = document.getElementById("board"), $ = (id) => document.getElementById(id);
  const bodies = [...board.tBodies].filter((body) => body.dataset.id), columns = [...board.tHead.rows[0].cells];
  const rivals = document.querySelectorAll("tr.rival:not(.gone)").length;
  const start = { sort: "", dir: "", q: "", show: "", all: rivals + bodies.length <= 60 ? "1" : "0", theme: "auto", r: "" };
  let state = { ...start };

  // The state lives in the URL's hash: #sort=overhead&dir=desc&q=moe&show=fail&all=1&r=r-moe-combine; a plain #r-… works too.
  function read() {
    const hash = location.hash.slice(1), next = { ...start };
    if (hash.includes("=")) for (const [key, value] of new URLSearchParams(hash)) { if (Object.hasOwn(next, key)) next[key] = value; }
    else if ($(hash)?.matches("details.range")) next.r = hash;
    return next;
  }
  function write() {
    const changed = Object.entries(state).filter(([key, value]) => value !== start[key]);
    const hash = new URLSearchParams(changed).toString();
    history.replaceState(null, "", hash ? "#" + hash : location.pathname + location.search);
  }
  function change(part) { state = { ...state, ...part }; apply(); write(); }
  function say() {
    const by = state.sort ? `sorted by ${state.sort}, ${state.dir === "asc" ? "ascending" : "descending"}` : "worst first";
    $("status").textContent = `${bodies.filter((body) => !body.hidden).length} of ${bodies.length} ranges, ${by}`;
  }

  function compare(key, sign) {
    const number = key !== "name";
    return (a, b) => {
      const x = a.dataset[key], y = b.dataset[key];
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined); // not measured: always last
      return sign * (number ? x - y : x < y ? -1 : x > y ? 1 : 0);
    };
  }
  const SCREENFUL = 60; // ranges that are placed before the next paint; the others follow at once behind it
  function place(sorted, wanted) {
    bodies.length && board.tHead.after(...sorted.slice(0, SCREENFUL));
    const rest = sorted.slice(SCREENFUL);
    if (rest.length) requestAnimationFrame(() => setTimeout(() => { if (order === wanted) board.append(...rest); }));
  }
  let order = "";
  function sort() {
    if (order === state.sort + state.dir) return;
    order = state.sort + state.dir;
    const sorted = state.sort ? [...bodies].sort(compare(state.sort, state.dir === "asc" ? 1 : -1)) : bodies;
    place(sorted, order);
    for (const cell of columns) {
      if (!cell.dataset.key) continue;
      if (cell.dataset.key === state.sort) cell.setAttribute("aria-sort", state.dir === "asc" ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    }
  }
  let filtered = "|";
  function filter() {
    if (filtered === state.q + "|" + state.show) return;
    filtered = state.q + "|" + state.show;
    const wanted = state.q.toLowerCase().split(/\s+/).filter(Boolean), statuses = state.show.split(" ").filter(Boolean);
    for (const body of bodies) {
      const hit = wanted.every((word) => body.dataset.q.includes(word)) && (!statuses.length || statuses.includes(body.dataset.s));
      body.hidden = !hit;
      $(body.dataset.id).hidden = !hit;
    }
  }
  // The rankings stand in the ranges' details; here copies of their rows follow each range on demand.
  function everyone() {
    const wanted = state.all === "1", there = board.querySelector("tr.rival") !== null;
    if (wanted === there) return;
    if (there) for (const row of board.querySelectorAll("tr.rival")) row.remove();
    else for (const body of bodies) body.append(...[...$(body.dataset.id).querySelectorAll("tr.rival:not(.gone)")].map((row) => row.cloneNode(true)));
  }
  function apply() {
    everyone();
    sort();
    filter();
    say();
    if ($("filter").value !== state.q) $("filter").value = state.q;
    for (const tile of document.querySelectorAll("button.tile")) tile.setAttribute("aria-pressed", tile.dataset.show === state.show);
    if ($("all")) $("all").checked = state.all === "1";
    root.style.colorScheme = state.theme === "auto" ? "" : state.theme;
    $("theme").textContent = "Theme: " + state.theme;
    for (const body of bodies) body.classList.toggle("here", body.dataset.id === state.r);
  }
  function open(id) {
    const range = id ? $(id) : null;
    if (!range?.matches("details.range")) return;
    range.hidden = false;
    range.open = true;
    range.scrollIntoView();
    range.querySelector("summary").focus({ preventScroll: true });
  }

  for (const cell of columns) {
    if (!cell.dataset.key) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...cell.childNodes);
    cell.append(button);
    button.addEventListener("click", () => {
      const key = cell.dataset.key, first = cell.dataset.first, second = first === "desc" ? "asc" : "desc";
      change({ sort: key, dir: state.sort === key && state.dir === first ? second : first });
    });
  }
  for (const tile of document.querySelectorAll(".tile")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = tile.className;
    button.dataset.show = tile.dataset.show;
    button.append(...tile.childNodes);
    button.addEventListener("click", () => change({ show: state.show === button.dataset.show ? "" : button.dataset.show }));
    tile.replaceWith(button);
  }
  $("filter").addEventListener("input", (event) => change({ q: event.target.value }));
  $("all")?.addEventListener("change", (event) => change({ all: event.target.checked ? "1" : "0" }));
  $("worst").addEventListener("click", () => change({ sort: "", dir: "", q: "", show: "" }));
  $("theme").addEventListener("click", () => change({ theme: { auto: "dark", dark: "light", light: "auto" }[state.theme] ?? "auto" }));
  board.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#r-']");
    if (!link) return;
    event.preventDefault();
    const id = link.getAttribute("href").slice(1);
    change({ r: id });
    open(id);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.closest("input")) { event.preventDefault(); $("filter").focus(); }
    if (event.key === "Escape" && event.target === $("filter")) change({ q: "" });
  });
  window.addEventListener("hashchange", () => { state = read(); apply(); open(state.r); });
  let closed = [];
  window.addEventListener("beforeprint", () => {
    const few = bodies.length <= 20;
    closed = [...document.querySelectorAll("details.range:not([open])")].filter((range) => few && !range.hidden);
    for (const range of closed) range.open = true;
  });
  window.addEventListener("afterprint", () => { for (const range of closed) range.open = false; });

  for (const code of document.querySelectorAll("code.copy")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copier";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy: " + code.textContent.slice(0, 80));
    button.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(code.textContent); button.textContent = "Copied"; }
      catch { getSelection().selectAllChildren(code); button.textContent = "Selected"; }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    code.after(button);
  }
  document.querySelector(".controls").hidden = false;
  state = read();
  apply();
  open(state.r);
})();
