"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const head = read("head"), rows = read("row-data"), tokens = read("tokens");
  for (const row of rows) {
    const runs = (row.parts || []).flatMap((part) => part.r || []);
    row.roles = [...new Set(runs.map(([role]) => role))].filter((role) => role >= 0);
  }
  const by = (id) => document.getElementById(id);
  const count = (number) => number.toLocaleString("en-US");
  const AT_ONCE = 3000; // tokens of a sequence in the page; a button adds more
  const COLOURS = 8;

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }

  // Tokens. The same token is made once, and copied.
  const made = [];
  function token(place) {
    if (made[place] === undefined) {
      const [id, text, special] = tokens[place];
      const one = element("span", { class: special ? "k special" : "k", "data-i": id });
      for (const part of text.split(/( +|\t|\n|[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000])/)) {
        if (part === "") continue;
        if (part === "\n") one.append(element("i", { class: "n" }), "\n");
        else if (part === "\t") one.append(element("i", { class: "t" }, part));
        else if (part[0] === " ") one.append(element("i", { class: "s" }, part));
        else if (/^\s$/.test(part)) one.append(element("i", { class: "o" }, part));
        else one.append(part);
      }
      made[place] = one;
    }
    return made[place].cloneNode(true);
  }
  const textOf = (part) => part.t.map((place) => tokens[place][1]).join("");

  function* pieces(runs, start, stop) {
    // [value, from, to] of the runs that lie in [start, stop).
    let at = 0;
    for (const [value, size] of runs) {
      const from = Math.max(at, start), to = Math.min(at + size, stop);
      if (from < to) yield [value, from, to];
      at += size;
    }
  }

  function hits(part) {
    // The tokens in which something was found.
    const found = new Set();
    if (!wanted) return found;
    const ends = [];
    let size = 0;
    for (const place of part.t) ends.push(size += tokens[place][1].length);
    let at = 0;
    for (const match of textOf(part).matchAll(wanted)) {
      while (at < ends.length && ends[at] <= match.index) at++;
      for (let each = at; each < ends.length; each++) {
        if ((each ? ends[each - 1] : 0) >= match.index + match[0].length) break;
        found.add(each);
      }
    }
    return found;
  }

  function fill(box, part, start, stop) {
    const found = hits(part);
    const last = Math.min(stop, start + AT_ONCE);
    let before = null;
    for (const [role, from, to] of pieces(part.r || [[-1, part.t.length]], start, last)) {
      for (const [trained, begin, end] of pieces(part.m, from, to)) {
        const run = element(trained ? "mark" : "span", { class: trained ? "run trained" : "run" });
        if (role >= 0) {
          run.classList.add(`c${role % COLOURS}`);
          run.dataset.role = head.roles[role];
          if (role !== before) run.dataset.first = "";
        }
        before = role;
        for (let at = begin; at < end; at++) {
          const one = token(part.t[at]);
          if (found.has(at)) one.classList.add("hit");
          run.append(one);
        }
        box.append(run);
      }
    }
    if (last < stop) {
      const next = Math.min(AT_ONCE, stop - last);
      const label = `show ${count(next)} more of ${count(stop - last)} tokens`;
      const more = element("button", { type: "button", class: "noprint" }, label);
      more.addEventListener("click", () => {
        more.remove();
        fill(box, part, last, stop);
        box.focus();
      });
      box.append(more);
    }
  }

  function sequence(part, label) {
    const box = element("div", {
      class: "text", tabindex: "0", role: "group",
      "data-size": part.t.length, "aria-label": `${label}; arrow keys go from token to token`,
    });
    fill(box, part, 0, part.t.length);
    return box;
  }

  function section(part, row) {
    const box = element("section", { "aria-label": part.name || "text" });
    if (part.line !== undefined) {
      box.append(element("h3", null, part.line));
      return box;
    }
    if (row.packed) box.classList.add("document");
    if (row.parts.length > 1 || row.packed) box.append(element("h3", null, part.caption));
    box.append(sequence(part, part.caption));
    for (const [place, size] of part.padding || []) {
      box.append(element("div", { class: "padding" }, `+ ${count(size)} × ${tokens[place][1].trim()}`));
    }
    return box;
  }

  function article(number) {
    const row = rows[number];
    const box = element("article", { tabindex: "-1", "data-row": number, "aria-labelledby": `title-${number}` });
    box.append(element("h2", { id: `title-${number}` }, row.title));
    if (row.kind) {
      box.append(element("div", { class: "reason" }, `${row.kind}: ${row.reason}`));
      if (row.message) box.append(element("div", { class: "meta" }, row.message));
      box.append(marked(row.text));
      return box;
    }
    box.append(element("div", { class: "meta" }, row.notes.join(" · ")));
    if (!row.pair) {
      row.parts.forEach((part) => box.append(section(part, row)));
      return box;
    }
    const [left, right] = row.pair;
    const others = row.parts.filter((_, place) => place !== left && place !== right);
    others.filter((part) => part.t).forEach((part) => box.append(section(part, row)));
    box.append(element("div", { class: "pair" }, section(row.parts[left], row), section(row.parts[right], row)));
    others.filter((part) => !part.t).forEach((part) => box.append(section(part, row)));
    return box;
  }

  function marked(text) {
    const box = element("pre", null);
    let at = 0;
    for (const match of wanted ? text.matchAll(wanted) : []) {
      box.append(text.slice(at, match.index), element("mark", { class: "k hit" }, match[0]));
      at = match.index + match[0].length;
    }
    box.append(text.slice(at));
    return box;
  }

  // What is shown
  let wanted = null, matching = [], page = 0, current = -1;
  const texts = [];
  function allText(number) {
    if (texts[number] === undefined) {
      const row = rows[number];
      const parts = row.kind ? [row.reason, row.message, row.text]
        : [...row.notes, ...row.parts.map((part) => part.line === undefined ? textOf(part) : part.line)];
      texts[number] = [row.title, ...parts].join("\n");
    }
    return texts[number];
  }
  const share = (row) => (!row.tokens ? null : (100 * row.trained) / row.tokens);
  const limit = (id, otherwise) => (by(id).value === "" ? otherwise : Number(by(id).value));

  const KINDS = {
    all: () => true,
    rows: (row) => !row.kind,
    left: (row) => Boolean(row.kind),
  };
  const ORDERS = {
    shortest: (row) => (row.kind ? null : row.tokens),
    longest: (row) => (row.kind ? null : -row.tokens),
    least: (row) => (row.kind ? null : share(row)),
    most: (row) => (row.kind || share(row) === null ? null : -share(row)),
  };

  let later = 0, asked = "";
  function filter() {
    clearTimeout(later);
    // A field that is left says again that it changed: what is shown, and the focus in it, must stay.
    const values = JSON.stringify([...by("controls").querySelectorAll("input, select")].map((one) => one.value));
    if (values === asked) return;
    asked = values;
    const search = by("search").value;
    wanted = search ? new RegExp(search.replace(/[.*+?^${}()|[\]\\\/]/g, "\\$&"), "giu") : null;
    const kind = by("kind").value, domain = by("domain").value, role = by("role").value;
    const [from, to] = [limit("tokens-min", -1), limit("tokens-max", Infinity)];
    const [least, most] = [limit("share-min", -1), limit("share-max", Infinity)];
    const sized = from > -1 || to < Infinity, shared = least > -1 || most < Infinity;
    matching = [];
    rows.forEach((row, number) => {
      const kept = kind in KINDS ? KINDS[kind](row) : row.kind && `${row.kind}: ${row.reason}` === kind;
      if (!kept || (domain && row.domain !== domain.slice(1))) return;
      if (role && !row.roles.includes(Number(role))) return;
      if (sized && (row.kind || row.tokens < from || row.tokens > to)) return;
      if (shared && (row.kind || share(row) === null || share(row) < least || share(row) > most)) return;
      if (wanted && allText(number).search(wanted) < 0) return;
      matching.push(number);
    });
    const order = ORDERS[by("order").value];
    if (order) {
      const keys = new Map(matching.map((number) => [number, order(rows[number])]));
      const key = (number) => (keys.get(number) === null ? Infinity : keys.get(number));
      matching.sort((one, other) => (key(one) < key(other) ? -1 : key(one) > key(other) ? 1 : one - other));
    }
    page = 0;
    current = -1;
    show();
  }

  function show() {
    const size = Number(by("size").value), pages = Math.max(1, Math.ceil(matching.length / size));
    page = Math.min(Math.max(page, 0), pages - 1);
    hide();
    const shown = matching.slice(page * size, (page + 1) * size);
    by("rows").replaceChildren(...shown.map(article));
    if (!rows.length) by("rows").append(element("p", { class: "empty" }, "There are no rows."));
    else if (!shown.length) by("rows").append(element("p", { class: "empty" }, "Nothing matches. Reset shows all."));
    by("found").textContent = `${count(matching.length)} of ${count(rows.length)} shown here, page ${count(page + 1)} of ${count(pages)}`;
    by("previous").disabled = page === 0;
    by("next").disabled = page === pages - 1;
  }

  function turn(pages, focus) {
    page += pages;
    show();
    scrollTo(0, 0);
    if (focus !== undefined) go(focus);
  }

  function go(place) {
    const shown = by("rows").querySelectorAll("article");
    const size = Number(by("size").value);
    if (place < 0) {
      if (page > 0) turn(-1, size - 1);
      return;
    }
    if (place >= shown.length) {
      if ((page + 1) * size < matching.length) turn(1, 0);
      return;
    }
    current = place;
    shown[place].focus({ preventScroll: true });
    shown[place].scrollIntoView({ block: "start" });
  }

  // The token under the mouse or the cursor
  let here = null;
  function hide() {
    if (here) here.classList.remove("here");
    here = null;
    by("tip").hidden = true;
  }
  function describe(one) {
    const box = one.closest(".text"), run = one.closest(".run");
    const place = Array.prototype.indexOf.call(box.querySelectorAll(".k"), one);
    const text = one.textContent === "" ? "part of the next character" : JSON.stringify(one.textContent);
    const words = [`token ${count(place + 1)} of ${count(Number(box.dataset.size))}`, `id ${one.dataset.i}`, text];
    words.push(run.classList.contains("trained") ? "trained" : "not trained");
    if (run.dataset.role) words.push(`role ${run.dataset.role}`);
    if (one.classList.contains("special")) words.push("special token");
    return words.join(" · ");
  }
  function point(one, spoken) {
    hide();
    here = one;
    one.classList.add("here");
    const tip = by("tip"), place = one.getClientRects()[0] || one.getBoundingClientRect();
    tip.textContent = describe(one);
    tip.hidden = false;
    tip.style.left = `${Math.max(4, Math.min(place.left, innerWidth - tip.offsetWidth - 8))}px`;
    const above = place.top - tip.offsetHeight - 6;
    tip.style.top = `${above > 0 ? above : place.bottom + 6}px`;
    if (spoken) by("spoken").textContent = tip.textContent;
  }
  const main = by("rows");
  main.addEventListener("mouseover", (event) => {
    const one = event.target.closest(".text .k");
    if (one) point(one);
    else hide();
  });
  main.addEventListener("mouseleave", hide);
  main.addEventListener("focusin", (event) => {
    const box = event.target.closest("article");
    if (box) current = Array.prototype.indexOf.call(main.querySelectorAll("article"), box);
    if (event.target.classList.contains("text") && event.target.matches(":focus-visible")) {
      const first = event.target.querySelector(".k");
      if (first) {
        first.scrollIntoView({ block: "nearest" });
        point(first, true);
      }
    }
  });
  main.addEventListener("focusout", hide);
  main.addEventListener("keydown", (event) => {
    const box = event.target;
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (!box.classList.contains("text") || step === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    const all = box.querySelectorAll(".k");
    if (!all.length) return;
    event.preventDefault();
    const at = here && box.contains(here) ? Array.prototype.indexOf.call(all, here) + step : 0;
    const one = all[Math.max(0, Math.min(all.length - 1, at))];
    one.scrollIntoView({ block: "nearest" });
    point(one, true);
  });
  addEventListener("scroll", () => { if (here && !here.matches(":hover") && !here.closest(":focus")) hide(); }, { passive: true });

  // Controls
  function toggle(id) {
    const on = document.body.classList.toggle(id);
    by(id).setAttribute("aria-pressed", on);
  }
  for (const id of ["spaces", "borders", "ids"]) by(id).addEventListener("click", () => toggle(id));
  const THEMES = ["auto", "light", "dark"];
  by("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const next = THEMES[(THEMES.indexOf(root.dataset.theme || "auto") + 1) % THEMES.length];
    if (next === "auto") delete root.dataset.theme;
    else root.dataset.theme = next;
    by("theme").textContent = `Theme: ${next}`;
  });
  by("previous").addEventListener("click", () => turn(-1));
  by("next").addEventListener("click", () => turn(1));
  by("controls").addEventListener("submit", (event) => event.preventDefault());
  by("search").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    filter();
    go(0);
  });
  by("controls").addEventListener("change", filter);
  by("controls").addEventListener("input", () => {
    clearTimeout(later);
    later = setTimeout(filter, 120);
  });
  by("clear").addEventListener("click", () => {
    by("controls").reset();
    filter();
  });
  const KEYS = {
    j: () => go(current + 1),
    k: () => go(current < 0 ? 0 : current - 1),
    n: () => by("next").disabled || turn(1),
    p: () => by("previous").disabled || turn(-1),
    w: () => toggle("spaces"),
    b: () => toggle("borders"),
    i: () => toggle("ids"),
    "/": () => { by("search").focus(); by("search").select(); },
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.preventDefault(); // it would empty the search
      hide();
      document.activeElement.blur();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    const action = KEYS[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  });

  // The head
  by("title").textContent = head.title;
  by("chosen").textContent = head.chosen;
  by("lines").textContent = head.lines.join("\n");
  for (const [label, value, note] of head.numbers) {
    by("numbers").append(element("div", { "data-key": label, "data-value": value },
      element("dt", null, label), element("dd", null, note ? `${count(value)} (${note})` : count(value))));
  }
  const options = (id, entries) => by(id).append(...entries.map(([value, text]) => element("option", { value }, text)));
  const tally = (values) => {
    const found = new Map();
    for (const value of values) found.set(value, (found.get(value) || 0) + 1);
    return [...found];
  };
  const left = rows.filter((row) => row.kind);
  options("kind", [["all", "everything"]]);
  if (left.length) {
    options("kind", [["rows", `rows (${count(rows.length - left.length)})`], ["left", `left out (${count(left.length)})`]]);
    options("kind", tally(left.map((row) => `${row.kind}: ${row.reason}`)).map(([name, size]) => [name, `${name} (${count(size)})`]));
  } else by("kind-label").hidden = true;
  const domains = tally(rows.filter((row) => !row.kind).map((row) => row.domain));
  options("domain", [["", "all"], ...domains.map(([name, size]) => [`=${name}`, `${name} (${count(size)})`])]);
  by("domain-label").hidden = domains.length < 2;
  by("share").hidden = !rows.some((row) => !row.kind);
  const roles = tally(rows.flatMap((row) => row.roles)).sort((one, other) => other[1] - one[1]);
  options("role", [["", "all"], ...roles.map(([role, size]) => [role, `${head.roles[role]} (${count(size)})`])]);
  by("role-label").hidden = !roles.length;
  by("role-legend").append(...roles.slice(0, COLOURS).map(([role]) =>
    element("span", { class: `role c${role % COLOURS}` }, head.roles[role])));
  by("no-roles").hidden = roles.length > 0 || rows.every((row) => row.kind);
  filter();
  document.documentElement.dataset.ready = "true";
})();
