"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const form = document.getElementById("filters");
  const STEP = 100;

  const element = (name, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };

  // What a cell sorts by: its key, or its text; a cell without a value has none.
  const keyOf = (cell) => (cell.className === "none" ? null : cell.dataset.key ?? cell.textContent);

  // A table whose rows are sorted and hidden by the keys of their cells and by what the rows say about themselves.
  const prepare = (id, describe) => {
    const table = document.getElementById(id), body = table.tBodies[0], rows = [...body.rows];
    const about = rows.map((row) => ({ ...row.dataset })), opened = new Map(), ranks = new Map();
    const more = element("button", { type: "button", className: "show" });
    let order = rows.map((_, row) => row), fits = [], words = null, limit = STEP;

    // Rank of each row's key in a column; rows without a key (not run, needs the task) have none.
    const ranked = (column) => {
      if (!ranks.has(column)) {
        const collator = new Intl.Collator("en", { numeric: true });
        const keys = rows.map((row) => keyOf(row.cells[column])), told = keys.filter((key) => key !== null);
        const compare = told.some((key) => isNaN(key)) ? collator.compare : (a, b) => a - b;
        const places = new Map([...new Set(told)].sort(compare).map((key, place) => [key, place]));
        ranks.set(column, keys.map((key) => places.get(key) ?? null));
      }
      return ranks.get(column);
    };

    // Only rows that are seen are in the document: laying out thousands would take a second.
    const place = (room, next) => {
      limit = room;
      const fitting = order.filter((row) => fits[row]);
      const seen = document.createDocumentFragment();
      for (const row of fitting.slice(0, limit)) {
        if (!rows[row].cells[0].firstElementChild) rows[row].cells[0].prepend(opener(row));
        seen.append(rows[row]);
        if (opened.has(row)) seen.append(opened.get(row));
      }
      body.replaceChildren(seen);
      const left = fitting.length - limit;
      if (left <= 0 && next !== undefined) rows[next].querySelector(".open").focus(); // a hidden button has no focus
      more.hidden = left <= 0;
      more.textContent = `Show ${Math.min(left, STEP)} more of ${left.toLocaleString("en")}`;
      return fitting.length;
    };

    const sort = (column, direction) => {
      const rank = ranked(column), sign = direction === "ascending" ? 1 : -1;
      order = rows.map((_, row) => row).sort((a, b) => {
        if (rank[a] === null || rank[b] === null) return (rank[a] === null) - (rank[b] === null) || a - b;
        return sign * (rank[a] - rank[b]) || a - b;
      });
      place(STEP);
    };

    const filter = ({ text, stream, method, noData, noGrowth }) => {
      words ??= rows.map((row) => row.textContent.toLowerCase());
      const parts = text.toLowerCase().split(/\s+/).filter(Boolean);
      fits = about.map((own, row) => (!stream || own.stream === stream) && (!method || own.method === method)
        && !(noData && ("restsOnData" in own || "notRun" in own)) && !(noGrowth && ("grows" in own || "notRun" in own))
        && parts.every((part) => words[row].includes(part)));
      return [place(STEP), rows.length];
    };

    const opener = (row) => {
      const button = element("button", { type: "button", className: "open" }), { method, stream, seed } = about[row];
      button.setAttribute("aria-expanded", "false");
      button.setAttribute("aria-label", `Details of ${method}, ${stream}${seed ? `, seed ${seed}` : ""}`);
      button.addEventListener("click", () => {
        const open = !opened.has(row);
        if (open) {
          const cell = element("td", { colSpan: rows[row].cells.length }, describe(row));
          opened.set(row, element("tr", { className: "more" }, cell));
          rows[row].after(opened.get(row));
        } else {
          opened.get(row).remove();
          opened.delete(row);
        }
        button.setAttribute("aria-expanded", String(open));
      });
      return button;
    };

    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = element("button", { type: "button" }, ...head.childNodes);
      button.addEventListener("click", () => {
        const other = { ascending: "descending", descending: "ascending" };
        const direction = other[head.ariaSort] ?? head.dataset.first;
        heads.forEach((each) => each.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", direction);
        sort(column, direction);
      });
      head.replaceChildren(button);
    });
    more.addEventListener("click", () => place(limit + STEP, order.filter((row) => fits[row])[limit]));
    addEventListener("beforeprint", () => place(Infinity));
    table.parentElement.after(more);
    return { rows, about, filter };
  };

  const sparkline = (losses) => {
    const space = "http://www.w3.org/2000/svg", all = losses.flat();
    const log = Math.min(...all) > 0, height = (loss) => (log ? Math.log(loss) : loss);
    const low = Math.min(...all.map(height)), high = Math.max(...all.map(height));
    const svg = document.createElementNS(space, "svg");
    for (const [name, value] of Object.entries({ class: "plot", viewBox: "0 0 300 40", width: 300, height: 40, role: "img" }))
      svg.setAttribute(name, value);
    svg.setAttribute("aria-label", `Loss, from ${all[0]} to ${all.at(-1)}`);
    let epoch = 0;
    losses.forEach((task) => {
      const points = task.map((loss) => {
        const x = 3 + (294 * epoch++) / Math.max(all.length - 1, 1);
        return `${x.toFixed(1)} ${(37 - (34 * (height(loss) - low)) / (high - low || 1)).toFixed(1)}`;
      });
      const line = document.createElementNS(space, "path");
      line.setAttribute("class", "mean s0");
      line.setAttribute("d", `M${points.join("L")}${points.length === 1 ? "h1" : ""}`);
      if (points.length) svg.append(line);
    });
    return element("dd", {}, svg, `${log ? "on a logarithmic scale, " : ""}one line per task, from ${all[0]} to ${all.at(-1)}`);
  };

  const describeRun = (at) => {
    const { facts, losses } = data.details[at], list = element("dl");
    for (let i = 0; i < facts.length; i += 2) {
      const [name, value] = [data.texts[facts[i]], data.texts[facts[i + 1]]];
      const code = /^[[{]|^cldnet /.test(value);
      list.append(element("dt", {}, name), element("dd", {}, code ? element("code", {}, value) : value));
    }
    if (losses.some((task) => task.length)) list.append(element("dt", {}, "Loss"), sparkline(losses));
    return list;
  };

  const describeResult = (at) => {
    const list = element("ul");
    const { summary } = results.about[at];
    for (const run of runs.rows.keys()) {
      if (runs.about[run].summary !== summary) continue;
      const heads = [...document.querySelectorAll("#runs thead th")].map((head) => head.textContent);
      const cells = [...runs.rows[run].cells], cell = (title) => cells[heads.indexOf(title)];
      const [name, value] = data.details[run].facts.map((fact) => data.texts[fact]);
      if (!cell("File").querySelector("a")) {
        const why = name === "Failed" ? `failed: ${value}` : "not run";
        list.append(element("li", {}, `Seed ${cell("Seed").textContent}: ${why}`));
        continue;
      }
      const file = cell("File").cloneNode(true);
      const said = `Seed ${cell("Seed").textContent}: accuracy ${cell("Accuracy").textContent}, forgetting `
        + `${cell("Forgetting").textContent}, ${cell("Seconds").textContent} s, ${cell("Bytes kept").textContent} `;
      list.append(element("li", {}, said, ...file.childNodes));
    }
    return list;
  };

  const results = prepare("results", describeResult), runs = prepare("runs", describeRun);
  const sections = [...document.querySelectorAll("section.stream")], count = form.querySelector("output");
  const apply = () => {
    const field = form.elements;
    const wanted = {
      text: field.words.value, stream: field.stream.value, method: field.method.value,
      noData: field["no-data"].checked, noGrowth: field["no-growth"].checked,
    };
    const [[some, all], [someRuns, allRuns]] = [results.filter(wanted), runs.filter(wanted)];
    for (const section of sections) section.hidden = Boolean(wanted.stream) && section.dataset.stream !== wanted.stream;
    const say = (number) => number.toLocaleString("en");
    count.textContent = `${say(some)} of ${say(all)} results, ${say(someRuns)} of ${say(allRuns)} runs match`;
  };
  form.addEventListener("input", apply);
  form.addEventListener("reset", () => setTimeout(apply));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  apply();
})();
