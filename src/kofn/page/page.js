"use strict";
// Shows a run: live from this page's server, or the one that is saved in this file. What is shown is
// computed by kofn.report.state; here it is only kept, bounded, and drawn.

const MOST = {spans: 40000, rounds: 5000, events: 1000, losses: 5000, levels: 5000};
const LINES = 40;  // lines of the picture: with more workers than that, some share a line
const WINDOW = 30;  // seconds that are shown at first, at most
const STATES = {
  used: "used", late: "late, not needed", wasted: "late, stopped", lost: "lost with its worker",
  failed: "raised an error", open: "still running",
};
const $ = id => document.getElementById(id);
const data = {head: null, workers: new Map(), spans: [], rounds: new Map(), events: [], losses: [], levels: []};
const view = {from: 0, to: 1, length: WINDOW, follow: true, paused: false, whole: false, first: 0, count: null, chosen: 0};
let detail = null;  // {round} or {worker}
let waiting = false;  // for the next frame
let colours = {};

// ---------------------------------------------------------------- numbers in words

function seconds(s) {
  if (s == null) return "–";
  if (s >= 3600) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
  if (s >= 100) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s >= 1) return `${+s.toPrecision(3)} s`;
  if (s >= 1e-3 || s === 0) return `${+(1e3 * s).toPrecision(3)} ms`;
  return `${+(1e6 * s).toPrecision(3)} µs`;
}
const whole = n => Math.round(n).toLocaleString("en");
function bytes(n) {
  if (n == null) return "–";
  const i = Math.min(4, Math.max(0, Math.floor(Math.log10(Math.max(n, 1)) / 3)));
  return `${+(n / 1000 ** i).toPrecision(3)} ${["B", "KB", "MB", "GB", "TB"][i]}`;
}
const plural = (n, what) => `${whole(n)} ${what}${n === 1 ? "" : "s"}`;
const percent = (a, b) => b > 0 ? `${+(100 * a / b).toPrecision(2)} %` : "0 %";

// ---------------------------------------------------------------- taking updates in

function take(update) {
  if (update.new) Object.assign(data, {workers: new Map(), spans: [], rounds: new Map(), events: [], losses: [], levels: []});
  data.head = update.head;
  for (const name of ["spans", "events", "losses", "levels"]) {
    const list = data[name];
    for (const one of update[name] || []) list.push(one);
    if (list.length > 1.1 * MOST[name]) list.splice(0, list.length - MOST[name]);
  }
  for (const row of update.rounds || []) data.rounds.set(row[0], row);
  if (data.rounds.size > 1.1 * MOST.rounds) {
    for (const id of [...data.rounds.keys()].slice(0, data.rounds.size - MOST.rounds)) data.rounds.delete(id);
  }
  for (const worker of update.workers || []) data.workers.set(worker.id, worker);
  // Between two lists of all workers: who came and went.
  for (const [time, kind, id] of update.events || []) {
    if (kind === "joined" && !data.workers.has(id)) {
      data.workers.set(id, {id, joined: time, stored: null, lost: null, leaving: false, why: "", tasks: 0, rows: 0, busy: 0, states: {}});
    } else if (kind === "lost" && data.workers.has(id)) data.workers.get(id).lost = time;
  }
  if (!view.paused) show();
}

function show() {
  if (waiting || !data.head) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}

let lost = null;  // when the connection was
function connect() {
  const source = new EventSource("events" + location.search);
  source.onopen = () => { lost = null; status("live", "running"); };
  source.onmessage = message => {
    const update = JSON.parse(message.data);
    take(update);
    status(data.head.closed ? "over" : "live", data.head.closed ? "the run is over" : "running");
    if (update.last) source.close();
  };
  source.onerror = () => {
    lost = lost ?? Date.now();
    const ago = Math.round((Date.now() - lost) / 1000);
    status("gone", ago < 5 ? "connection lost, trying again" : `no answer for ${seconds(ago)}: the program may have ended`);
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 1000);
  };
}

function status(is, text) {
  if (view.paused) text += ", picture paused";
  if ($("status").textContent === text) return;
  $("status").dataset.is = is;
  $("status").textContent = text;
}

// ---------------------------------------------------------------- words and figures

function draw() {
  const head = data.head;
  if (view.follow) {
    view.to = Math.max(head.time, 1e-6);
    view.from = view.whole ? 0 : Math.max(0, view.to - view.length);
  }
  $("title").textContent = head.title || "kofn";
  document.title = head.title && !head.title.startsWith("kofn") ? `${head.title} · kofn` : head.title || "kofn";
  $("engine").textContent = `${seconds(head.time)} · ${head.engine}`;
  $("story").textContent = head.story.join(" ");
  race(head);
  tiles(head);
  events();
  picture();
  losses();
  if (detail) details();
}

// Two bars: what the rounds took, and what they would have taken without coding.
function race(h) {
  $("race").hidden = !h.followed;
  if (!h.followed) return;
  $("headline").textContent = h.headline;
  const most = Math.max(h.took, h.without, 1e-9), again = h.restarts ? `, begun anew ${h.restarts === 1 ? "once" : `${h.restarts} times`}` : "";
  $("with").style.width = `${50 * h.took / most}%`;
  $("without").style.width = `${50 * h.without / most}%`;
  $("with-time").textContent = seconds(h.took);
  $("without-time").textContent = `${h.at_least ? "at least " : ""}${seconds(h.without)}${again}`;
}

let lastRound = null;
function tiles(h) {
  lastRound = h.round || lastRound;  // between two rounds there is none, for a moment
  const money = n => Math.abs(n) >= 1 || n === 0 ? n.toFixed(2) : `${+n.toPrecision(2)}`;
  const saved = h.without - h.took;
  const same = Math.abs(saved) <= .05 * Math.max(h.took, h.without);
  const worth = h.at_least && saved < 0 ? "not known" : same ? "next to nothing" : null;  // else the figure
  const list = [
    ["Workers live", whole(h.live), [h.any ? `any ${h.k} are enough` : h.k > 1 ? `at least ${h.k} are needed` : "", h.leaving ? `${h.leaving} will leave` : ""].filter(s => s).join("; ")],
    ["Workers lost", whole(h.lost), `${whole(h.joined)} joined`],
    ["Rounds", whole(h.rounds), `${+h.rate.toPrecision(3)} a second`],
    ["A round takes", seconds(h.p50), `1 in 100 takes more than ${seconds(h.p99)}`],
    ["Rows used", whole(h.used), `${whole(h.read)} came, ${percent(h.wasted, h.read)} of them not needed; ${whole(h.topped_up)} were done by others`],
  ];
  if (h.price != null && h.cost != null && h.saved != null) list.push(["Money saved", worth ?? money(h.saved), `spent ${money(h.cost)}, at ${h.price} an hour for a worker`]);
  if (h.error_bound != null) list.push(["Error at most", h.error_bound.toExponential(0), h.eta == null ? "relative" : `relative; η = ${+h.eta.toPrecision(2)}`]);
  if (h.resident != null) list.push(["Memory", bytes(h.resident), `of all workers; at most ${bytes(h.resident_most)} of one`]);
  if (h.moved != null) list.push(["Moved", bytes(h.moved), "to and from workers"]);
  if (!h.closed && lastRound) list.push(["Now", `round ${lastRound[0]}`, lastRound[2]]);
  const box = $("tiles");
  while (box.children.length > list.length) box.lastChild.remove();
  list.forEach((texts, i) => {
    let tile = box.children[i];
    if (!tile) {
      tile = document.createElement("div");
      tile.append(document.createElement("dt"), document.createElement("dd"));
      box.append(tile);
    }
    const [name, value] = tile.children;
    const text = texts.join("|");
    if (tile.dataset.text === text) return;
    tile.dataset.text = text;
    name.textContent = texts[0];
    value.textContent = texts[1];
    const small = document.createElement("small");
    small.textContent = texts[2];
    value.append(small);
  });
}

let listed = null;
function events() {
  const last = data.events[data.events.length - 1];
  if (last === listed) return;
  listed = last;
  const items = data.events.slice(-200).reverse().map(([time, kind, , text, round]) => {
    const item = document.createElement("li"), at = document.createElement("time"), what = document.createElement("span");
    at.textContent = seconds(time);
    what.textContent = {lost: "✕ ", joined: "▶ ", leaving: "◆ ", raised: "! ", wrong: "! ", aside: "! ", tuned: "↻ "}[kind] || "";
    what.style.color = ink({lost: "gone", joined: "joined", leaving: "leaving"}[kind] || "ink");
    const rest = document.createElement("span");
    rest.textContent = text + (round == null ? "" : ` (round ${round})`);
    item.append(at, what, rest);
    return item;
  });
  $("events").replaceChildren(...items);
}

// ---------------------------------------------------------------- the picture

const ink = name => colours[name];
function readColours() {
  const style = getComputedStyle(document.documentElement);
  colours = {};
  for (const name of ["paper", "panel", "ink", "soft", "line", "band", "storing", "joined", "gone", "leaving", "need", "focus", ...Object.keys(STATES)]) {
    colours[name] = style.getPropertyValue("--" + name).trim();
  }
}

function canvas(id, height) {
  const element = $(id), width = element.clientWidth, scale = devicePixelRatio || 1;
  if (element.width !== Math.round(width * scale) || element.height !== Math.round(height * scale)) {
    element.width = Math.round(width * scale);
    element.height = Math.round(height * scale);
    element.style.height = height + "px";
  }
  const c = element.getContext("2d");
  c.setTransform(scale, 0, 0, scale, 0, 0);
  c.clearRect(0, 0, width, height);
  c.font = "12px system-ui, sans-serif";
  return [c, width, height];
}

// Which workers are on which line. Those that were gone before the view, or came after, are left out.
function layout() {
  const there = [...data.workers.values()].sort((a, b) => a.id - b.id)
    .filter(w => (w.joined ?? 0) <= view.to && (w.lost == null || w.lost >= view.from));
  const some = view.count == null ? there : there.filter(w => w.id >= view.first && w.id < view.first + view.count);
  const each = Math.ceil(some.length / LINES) || 1;
  const lines = [];
  for (let i = 0; i < some.length; i += each) lines.push(some.slice(i, i + each));
  const height = Math.max(15, Math.min(26, Math.floor(420 / Math.max(1, lines.length))));
  return {lines, each, height, total: there.length};
}

let hatch = null;
function lostPattern(c) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const t = tile.getContext("2d");
  t.fillStyle = ink("lost");
  t.fillRect(0, 0, 6, 6);
  t.strokeStyle = ink("paper");
  t.lineWidth = 1.2;
  t.beginPath();
  t.moveTo(-1, 7); t.lineTo(7, -1);
  t.stroke();
  return c.createPattern(tile, "repeat");
}

let shape = null;  // where things are, for clicks
function picture() {
  const {lines, each, height, total} = layout();
  const left = $("lanes").clientWidth < 500 ? 62 : 96;
  const [c, width, tall] = canvas("lanes", lines.length * height + 24);
  const span = Math.max(view.to - view.from, 1e-9);
  const x = t => left + (t - view.from) / span * (width - left - 8);
  shape = {lines, each, height, left, width, time: px => view.from + (px - left) / (width - left - 8) * span};
  const place = new Map();  // worker -> [top, height]
  lines.forEach((line, i) => line.forEach((w, j) => {
    const room = (height - 4) / line.length;
    place.set(w.id, [i * height + 2 + j * room, Math.max(room - (line.length > 1 && room > 2 ? .5 : 0), .5)]);
  }));
  c.save();
  c.beginPath();
  c.rect(left, 0, width - left, tall);
  c.clip();
  for (const line of lines) for (const w of line) {
    const [top, h] = place.get(w.id), begin = x(w.joined ?? 0), end = x(w.lost ?? view.to);
    c.fillStyle = ink("band");
    c.fillRect(begin, top, Math.max(end - begin, 1), h);
    if (w.joined != null && (w.stored != null || !w.tasks)) {
      c.fillStyle = ink("storing");
      c.globalAlpha = .45;
      c.fillRect(begin, top, Math.max((w.stored == null ? end : x(w.stored)) - begin, 1), h);
      c.globalAlpha = 1;
    }
  }
  hatch = lostPattern(c);
  for (const [id, start, end, until, , state] of data.spans) {
    if (end < view.from || start > view.to) continue;
    const at = place.get(id);
    if (!at) continue;
    const a = x(start), m = x(until), b = x(end), gap = b - a > 4 ? .7 : 0;
    if (until > start) { c.fillStyle = ink("used"); c.fillRect(a, at[0], Math.max(m - a - gap, .6), at[1]); }
    if (end > until) { c.fillStyle = state === "lost" ? hatch : ink(state); c.fillRect(m, at[0], Math.max(b - m - gap, .6), at[1]); }
  }
  roundLines(c, x, lines.length * height);
  for (const line of lines) for (const w of line) marks(c, w, place.get(w.id), x, line.length);
  c.restore();
  axis(c, x, lines.length * height, left, width);
  c.textAlign = "right";
  c.textBaseline = "middle";
  lines.forEach((line, i) => {
    const gone = line.every(w => w.lost != null && w.lost <= view.to);
    c.fillStyle = ink(gone ? "soft" : "ink");
    const short = left < 80;
    const name = line.length === 1 ? `${short ? "" : "worker "}${line[0].id}` : `${line[0].id}–${line[line.length - 1].id}`;
    if (height >= 12 || i % 2 === 0) c.fillText(name, left - 8, i * height + height / 2);
    if (i === view.chosen && document.activeElement === $("lanes")) {
      c.strokeStyle = ink("focus");
      c.strokeRect(.5, i * height + .5, width - 1, height - 1);
    }
  });
  const {followed, rounds} = data.head, notes = [];
  if (each > 1) notes.push(`${plural(total, "worker")}, ${each} to a line: click a line to see it closer`);
  if (followed && followed < .99 * rounds) notes.push(`tasks of ${plural(followed, "round")} of ${whole(rounds)} are drawn`);
  $("shown").textContent = notes.join("; ");
  $("back").hidden = view.count == null;
  levels(x, left);
}

function marks(c, w, [top, h], x, sharing) {
  const y = top + h / 2, size = sharing > 4 ? 3.5 : Math.min(6, Math.max(3, h / 2.4));
  c.lineWidth = 2;
  if (w.joined != null && w.joined >= view.from) {
    const a = x(w.joined);
    c.fillStyle = ink("joined");
    c.beginPath();
    c.moveTo(a - size, y - size); c.lineTo(a + size, y); c.lineTo(a - size, y + size);
    c.fill();
  }
  if (w.lost != null && w.lost <= view.to) {
    const a = x(w.lost);
    for (const [style, wide] of [[ink("paper"), 5], [ink("gone"), 2.4]]) {
      c.strokeStyle = style;
      c.lineWidth = wide;
      c.beginPath();
      c.moveTo(a - size, y - size); c.lineTo(a + size, y + size);
      c.moveTo(a - size, y + size); c.lineTo(a + size, y - size);
      c.stroke();
    }
  }
  if (w.leaving) {
    const a = x(view.to) - 8;
    c.fillStyle = ink("leaving");
    c.beginPath();
    c.moveTo(a - size, y); c.lineTo(a, y - size); c.lineTo(a + size, y); c.lineTo(a, y + size);
    c.fill();
  }
}

function inView() {
  return [...data.rounds.values()].filter(r => r[2] >= view.from && r[1] <= view.to);
}

function roundLines(c, x, bottom) {
  const some = inView();
  if (some.length > 60) return;
  for (const r of some) {
    c.fillStyle = ink(detail && detail.round === r[0] ? "focus" : "soft");
    c.globalAlpha = detail && detail.round === r[0] ? 1 : .45;
    c.fillRect(x(r[2]), 0, 1, bottom);
  }
  c.globalAlpha = 1;
}

function axis(c, x, top, left, width) {
  const span = view.to - view.from, unit = view.to < 2e-3 ? [1e6, "µs"] : view.to < 2 ? [1e3, "ms"] : [1, "s"];
  const raw = span * unit[0] / Math.max(2, (width - left) / 110), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= raw);
  c.fillStyle = ink("soft");
  c.textAlign = "center";
  c.textBaseline = "top";
  for (let t = Math.ceil(view.from * unit[0] / step) * step; t <= view.to * unit[0]; t += step) {
    const at = x(t / unit[0]);
    c.fillRect(at, top, 1, 4);
    if (at > left + 12 && at < width - 30) c.fillText(`${+t.toPrecision(8)} ${unit[1]}`, at, top + 7);
  }
}

function levels(x, left) {
  const [c, width, height] = canvas("levels", 84);
  const rows = data.levels, most = Math.max(1, ...rows.map(r => Math.max(r[1], r[2]))) * 1.08;
  const y = n => height - 6 - n / most * (height - 16);
  const line = (index, colour, wide, dash) => {
    c.strokeStyle = colour;
    c.lineWidth = wide;
    c.setLineDash(dash);
    c.beginPath();
    let last = null;
    for (const row of rows) {
      if (row[index] === 0 && index === 2) continue;
      if (row[0] > view.to) break;
      const at = Math.max(left, x(row[0]));
      if (last == null || row[0] <= view.from) { c.beginPath(); c.moveTo(at, y(row[index])); }
      else { c.lineTo(at, y(last)); c.lineTo(at, y(row[index])); }
      last = row[index];
    }
    if (last != null) c.lineTo(x(view.to), y(last));
    c.stroke();
    c.setLineDash([]);
    return last;
  };
  const live = line(1, ink("used"), 2, []), need = line(2, ink("need"), 1.5, [5, 4]);
  c.textAlign = "right";
  c.textBaseline = "middle";
  const close = live != null && need ? Math.abs(y(live) - y(need)) < 14 : false;
  c.fillStyle = ink("used");
  if (live != null) c.fillText(left < 80 ? `${live} live` : `${live} live`, left - 8, y(live) - (close ? 7 : 0));
  c.fillStyle = ink("need");
  if (need) c.fillText(left < 80 ? `need ${need}` : `${need} needed`, left - 8, y(need) + (close ? 7 : 0));
}

function losses() {
  const points = data.losses.filter(p => p[2] != null);
  $("loss-box").hidden = points.length < 2;
  if (points.length < 2) return;
  const [c, width, height] = canvas("loss", 180);
  const values = points.map(p => p[2]), low = Math.min(...values), high = Math.max(...values);
  const log = low > 0 && high / low > 20, f = v => log ? Math.log(v) : v;
  const y = v => 12 + (f(high) - f(v)) / (f(high) - f(low) || 1) * (height - 40);
  const x = i => 62 + i / (points.length - 1) * (width - 74);
  c.strokeStyle = ink("used");
  c.lineWidth = 2;
  c.beginPath();
  values.forEach((v, i) => i ? c.lineTo(x(i), y(v)) : c.moveTo(x(i), y(v)));
  c.stroke();
  c.fillStyle = ink("soft");
  c.textAlign = "right";
  c.textBaseline = "middle";
  for (const v of [high, low]) c.fillText(v.toPrecision(4), 56, y(v));
  c.textBaseline = "bottom";
  c.fillText(`iteration ${points[points.length - 1][1]}${log ? ", logarithmic" : ""}`, width - 12, height - 2);
}

// ---------------------------------------------------------------- details of a round or a worker

function open(what) {
  detail = what;
  $("detail").hidden = false;
  details();
  show();
}

function cells(names, rows) {
  const row = (texts, tag) => {
    const tr = document.createElement("tr");
    for (const text of texts) {
      const cell = document.createElement(tag);
      if (typeof text === "object") {
        const button = document.createElement("button");
        button.textContent = text.name;
        button.onclick = () => open(text.what);
        cell.append(button);
      } else cell.textContent = text;
      tr.append(cell);
    }
    return tr;
  };
  $("detail-table").replaceChildren(row(names, "th"), ...rows.map(r => row(r, "td")));
}

function details() {
  const key = JSON.stringify(detail) + (detail.round != null ? JSON.stringify(data.rounds.get(detail.round)) : data.spans.length);
  if ($("detail").dataset.key === key) return;
  $("detail").dataset.key = key;
  if (detail.round != null) aboutRound(detail.round); else aboutWorker(detail.worker);
}

function aboutRound(id) {
  const r = data.rounds.get(id), mine = data.spans.filter(s => s[4] === id);
  $("detail-title").textContent = `Round ${id}`;
  if (!r) { $("detail-text").textContent = "This round is still going on, or is no longer kept."; cells([], []); return; }
  const [, start, end, done, asked, lost, used, wasted, topped, without, words] = r;
  $("detail-text").textContent = `${words || ""}. It began at ${seconds(start)} and took ${seconds(end - start)}`
    + `${done ? "" : ", and raised an error"}. ${plural(asked, "task")} sent, ${plural(used, "row")} used, ${whole(wasted)} not needed, `
    + `${whole(topped)} done by others.${lost ? ` ${plural(lost, "worker")} lost meanwhile.` : ""}`
    + (without == null ? "" : ` Without coding it would have taken ${seconds(without)}.`);
  mine.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  cells(["worker", "began after", "took", "rows asked", "came in time", "what became of it"], mine.map(s => [
    {name: s[0], what: {worker: s[0]}}, seconds(Math.max(0, s[1] - start)), seconds(s[2] - s[1]), whole(s[6]), whole(s[7]), STATES[s[5]]]));
}

function aboutWorker(id) {
  const w = data.workers.get(id), mine = data.spans.filter(s => s[0] === id).slice(-100).reverse();
  $("detail-title").textContent = `Worker ${id}`;
  if (!w) return;
  const ends = Object.entries(w.states).map(([state, n]) => `${whole(n)} ${STATES[state]}`).join(", ");
  $("detail-text").textContent = (w.joined == null ? "There from the start" : `Joined at ${seconds(w.joined)}`)
    + (w.lost == null ? w.leaving ? `; will be gone soon${w.why ? `: ${w.why}` : ""}` : "" : `; lost at ${seconds(w.lost)}${w.why ? `: ${w.why}` : ""}`)
    + `. ${plural(w.tasks, "task")}${ends ? ` (${ends})` : ""}, ${plural(w.rows, "row")} in time, ${seconds(w.busy)} at work.`
    + (w.resident == null ? "" : ` It has ${bytes(w.resident)} of memory.`) + (w.moved == null ? "" : ` ${bytes(w.moved)} went to and from it.`);
  cells(["round", "began at", "took", "rows asked", "came in time", "what became of it"], mine.map(s => [
    {name: s[4], what: {round: s[4]}}, seconds(s[1]), seconds(s[2] - s[1]), whole(s[6]), whole(s[7]), STATES[s[5]]]));
}

// ---------------------------------------------------------------- hands

function zoom(factor, at) {
  const end = data.head.time, length = Math.min(Math.max((view.to - view.from) * factor, 1e-5), Math.max(end, 1e-5));
  const middle = at ?? (view.follow ? view.to : (view.from + view.to) / 2), part = (middle - view.from) / (view.to - view.from || 1);
  view.whole = false;
  view.length = length;
  view.from = Math.max(0, middle - part * length);
  view.to = view.from + length;
  if (!view.follow && view.to > end) { view.to = end; view.from = Math.max(0, end - length); }
  show();
}

function move(by) {
  const length = view.to - view.from;
  follow(false);
  view.from = Math.max(0, Math.min(view.from + by, data.head.time - length));
  view.to = view.from + length;
  show();
}

function follow(on) {
  view.follow = on;
  if (!on) view.whole = false;
  $("follow").setAttribute("aria-pressed", on);
}

function newest() {
  if (view.whole) { view.whole = false; view.length = WINDOW; }
  follow(true);
  show();
}

function pause() {
  view.paused = !view.paused;
  $("pause").setAttribute("aria-pressed", view.paused);
  $("pause").textContent = view.paused ? "Go on" : "Pause";
  if (!view.paused) draw();
}

function line(i) {  // open a worker, or have a closer look at several
  const some = shape && shape.lines[i];
  if (!some) return;
  if (some.length === 1) { open({worker: some[0].id}); return; }
  view.first = some[0].id;
  view.count = some[some.length - 1].id - some[0].id + 1;
  view.chosen = 0;
  show();
}

function click(px, py) {
  const i = Math.floor(py / shape.height), some = shape.lines[i];
  if (!some) return;
  view.chosen = i;
  if (px < shape.left || some.length > 1) { line(i); return; }
  const t = shape.time(px), near = 3 * (shape.time(1) - shape.time(0));
  const hit = data.spans.filter(s => s[0] === some[0].id && s[1] - near <= t && s[2] + near >= t)
    .sort((a, b) => Math.abs(a[1] + a[2] - 2 * t) - Math.abs(b[1] + b[2] - 2 * t))[0];
  open(hit ? {round: hit[4]} : {worker: some[0].id});
}

function rounds(by) {
  const ids = inView().map(r => r[0]).sort((a, b) => a - b);
  const i = detail && detail.round != null ? ids.indexOf(detail.round) : -1;
  const next = i < 0 ? ids[by > 0 ? 0 : ids.length - 1] : ids[i + by];
  if (next != null) open({round: next});
}

function hands() {
  const lanes = $("lanes");
  let grip = null;
  lanes.onpointerdown = e => { grip = {x: e.offsetX, y: e.offsetY, from: view.from, moved: false}; lanes.setPointerCapture(e.pointerId); };
  lanes.onpointermove = e => {
    if (!grip) return;
    if (Math.abs(e.offsetX - grip.x) > 4) grip.moved = true;
    if (grip.moved) move(grip.from + (shape.time(grip.x) - shape.time(e.offsetX)) - view.from);
  };
  lanes.onpointerup = e => { if (grip && !grip.moved) click(e.offsetX, e.offsetY); grip = null; };
  lanes.onpointercancel = () => { grip = null; };
  lanes.onfocus = lanes.onblur = show;
  // A wheel that only passes over the picture scrolls the page; one on the chosen picture zooms.
  lanes.addEventListener("wheel", e => {
    if (document.activeElement !== lanes && !e.ctrlKey) return;
    e.preventDefault();
    zoom(e.deltaY > 0 ? 1.25 : .8, view.follow ? undefined : shape.time(e.offsetX));
  }, {passive: false});
  const keys = {
    "+": () => zoom(.6), "=": () => zoom(.6), "-": () => zoom(1.6), ArrowLeft: () => move((view.from - view.to) / 5),
    ArrowRight: () => move((view.to - view.from) / 5), End: newest, Home: () => $("all").click(),
    ArrowUp: () => { view.chosen = Math.max(0, view.chosen - 1); show(); },
    ArrowDown: () => { view.chosen = Math.min(shape.lines.length - 1, view.chosen + 1); show(); },
    Enter: () => line(view.chosen), "[": () => rounds(-1), "]": () => rounds(1),
  };
  lanes.onkeydown = e => {
    if (!keys[e.key] || e.ctrlKey || e.metaKey || e.altKey || !data.head) return;
    e.preventDefault();
    keys[e.key]();
  };
  document.addEventListener("keydown", e => {
    if (e.key === " " && e.target.tagName !== "BUTTON") { e.preventDefault(); pause(); }
    if (e.key === "Escape") shut();
  });
  $("pause").onclick = pause;
  $("in").onclick = () => zoom(.5);
  $("out").onclick = () => zoom(2);
  $("all").onclick = () => { follow(true); view.whole = true; show(); };
  $("follow").onclick = newest;
  $("back").onclick = () => { view.count = null; view.chosen = 0; show(); };
  $("close").onclick = shut;
  $("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  addEventListener("resize", show);
}

function shut() {
  detail = null;
  $("detail").hidden = true;
  show();
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  readColours();
  legend();
  listed = null;
  show();
}

function legend() {
  const item = (sign, colour, text, background) => {
    const li = document.createElement("li"), box = document.createElement("span");
    box.textContent = background ? "\u00a0" : sign;
    box.style.color = ink(colour);
    if (background) box.style.lineHeight = "12px";
    if (background) box.style.background = `repeating-linear-gradient(-45deg, ${ink(colour)} 0 3px, ${ink(background)} 3px 4px)`;
    li.append(box, text);
    return li;
  };
  const states = Object.entries(STATES).filter(([s]) => s !== "open")
    .map(([state, text]) => item("■", state, text, state === "lost" ? "paper" : null));
  $("legend").replaceChildren(...states, item("■", "band", "idle"), item("■", "storing", "storing its data"),
    item("▶", "joined", "worker joined"), item("◆", "leaving", "will be gone soon"), item("✕", "gone", "worker lost"));
}

function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  theme(dark.matches ? "dark" : "light");
  dark.onchange = e => theme(e.matches ? "dark" : "light");
  hands();
  const saved = JSON.parse($("run").textContent);
  if (saved) {
    take(saved);
    view.whole = true;
    status("over", "a saved run");
    $("pause").hidden = $("follow").hidden = true;
    show();
  } else {
    connect();
  }
}

start();
