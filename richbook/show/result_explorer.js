// Draws a recipe's result: a measure and the accuracies during training, the spectrum and the
// cumulative curves at one step, how every setting ended, and a table of numbers.

const COLORS = { measure: "#d55e00", utilization: "#0072b2", quality: "#cc79a7" };
const OTHERS = ["#009e73", "#e69f00", "#56b4e9"];  // curves that have no colour of their own
const DASHES = ["6 4", "2 3", "10 3 2 3"];         // variants of the test samples
const SHORT = { utilization: HAT_PI, quality: "Π*" };
const SYMBOLS = { utilization: `utilisation ${HAT_PI}`, quality: "quality Π*" };
const STEP = "training step <tspan font-style='italic'>t</tspan> (updates)";

const escaped = (words) =>
  String(words).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const spelled = (words) => escaped(words).replace("utilization", "utilisation");
const pretty = (words) => spelled(words).replace("D_LR", SUBSCRIPT)
  .replace("S_init", 'S<tspan dy="3" font-size="75%">init</tspan><tspan dy="-3">\u200b</tspan>');
const inHtml = (words) => spelled(words).replace(/\b([DS])_(LR|init)/g, "$1<sub>$2</sub>");
const shortened = (words, most) => (words.length > most ? `${words.slice(0, most - 1)}…` : words);
const number = (v) => (Number.isFinite(v) ? String(+v.toPrecision(3)) : "undefined");
const power = (exponent) => (exponent === 0 ? "1" :
  `10${String(exponent).replace(/./g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]))}`);
const logarithmic = (low, high, from, to) => {
  const scale = linear(Math.log10(low), Math.log10(high), from, to);
  return (v) => scale(Math.log10(v));
};

// Round numbers from `low` to `high`, about `count` of them.
function roundTicks(low, high, count) {
  const rough = (high - low) / count, unit = 10 ** Math.floor(Math.log10(rough));
  const gap = unit * ([1, 2, 5].find((m) => m * unit >= rough) ?? 10);
  const first = Math.ceil(low / gap - 1e-9), last = Math.floor(high / gap + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => +((first + i) * gap).toPrecision(8));
}

function powersOfTen(low, high) {
  const first = Math.ceil(Math.log10(low)), last = Math.floor(Math.log10(high));
  return Array.from({ length: last - first + 1 }, (_, i) => 10 ** (first + i));
}

const place = (s, setting, step = s.at[1]) => setting * s.steps.length + step;
const others = (s) => s.axis.labels.map((_, i) => i).filter((i) => i !== s.at[0]);
const faint = (d, dashes) => `<path class="rb-other" fill="none" d="${d}"${dashes ? ` stroke-dasharray="${dashes}"` : ""}/>`;
const dot = (x, y, color) => (Number.isFinite(y) ? `<circle cx="${fixed(x)}" cy="${fixed(y)}" r="4.2" fill="${color}" class="rb-dot"/>` : "");
const cursor = (s, x, box) => line(x(s.steps[s.at[1]]), box.top - 4, x(s.steps[s.at[1]]), box.bottom, "rb-cursor");
const label = (x, y, words, strong) => text(x, y + 4, escaped(words),
  strong ? { more: `style="font-weight:600;fill:${COLORS.measure}"` } : { kind: "rb-small" });

// The range that a measure needs: from 0, or on a log axis from its smallest value.
function extent(values, log) {
  const known = [...values].filter((v) => Number.isFinite(v) && (!log || v > 0));
  const high = Math.max(...known, log ? 0 : 1e-6);
  return known.length ? [log ? Math.min(...known) : Math.min(0, ...known), high * (log ? 1.1 : 1.06)] : [0, 1];
}

function drawMeasure(s, width, height) {
  const values = s.data[s.measure.name], all = s.floor ? [...values, ...s.data[s.floor]] : values;
  const [low, high] = extent(all, s.log), names = s.axis.labels.map((words) => shortened(words, 13));
  const { box, draw } = frame(width, height, { title: `${pretty(s.measure.words)} during training`, xName: STEP,
    right: roomFor(names), xTicks: decades(s.steps, width > 300),
    yTicks: s.log ? powersOfTen(low, high) : roundTicks(low, high, 5), yLabel: (v) => (s.log ? power(Math.round(Math.log10(v))) : v) });
  const x = steps(s.steps, box.left, box.right), y = (s.log ? logarithmic : linear)(low, high, box.bottom, box.top);
  const last = (setting) => values[place(s, setting, s.steps.length - 1) * 3];
  const ends = names.map((words, i) => ({ at: y(last(i)), words, here: i === s.at[0], full: s.axis.labels[i] }))
    .filter(({ at, here }, i) => Number.isFinite(at) && (here || names.length < 7 || i === 0 || i === names.length - 1));
  const floor = s.floor ? `<path class="rb-floor" fill="none" d="${path(curve(s.data[s.floor], s.at[0], s.steps, x, y, 0))}"/>` : "";
  const under = s.floor && y(s.data[s.floor][place(s, s.at[0], s.steps.length - 1) * 3]);
  return draw(x, y) + cursor(s, x, box) + floor +
    (under > 0 ? text(box.right - 6, under - 4, "isotropic floor", { anchor: "end", kind: "rb-small" }) : "") +
    others(s).map((i) => faint(path(curve(values, i, s.steps, x, y, 0)))).join("") +
    bandAndLine(values, s.at[0], s.steps, x, y, COLORS.measure) +
    dot(x(s.steps[s.at[1]]), y(values[place(s, s.at[0]) * 3]), COLORS.measure) +
    spread(ends, 13, box).map(({ at, words, here }) => label(box.right + 7, at, words, here)).join("");
}

// Pixels to the right of a panel that labels take.
const roomFor = (names) => Math.max(24, 12 + 7.2 * Math.max(...names.map((words) => words.length)));

const accuracyNames = (s) => s.accuracies.map(({ name, words }) =>
  (/accuracy/.test(name) ? name.replace("_accuracy", "").replace(/^test_/, "").replaceAll("_", " ") : words));

function drawAccuracies(s, width, height) {
  const names = accuracyNames(s);
  const { box, draw } = frame(width, height, { title: "accuracy (fraction correct)", xName: STEP,
    right: roomFor(names), xTicks: decades(s.steps, width > 300), yTicks: [0, 0.5, 1] });
  const x = steps(s.steps, box.left, box.right), y = linear(0, 1, box.bottom, box.top);
  const isTest = ({ name }) => name.startsWith("test"), tests = s.accuracies.filter(isTest);
  const dashes = (each) => (isTest(each) ? DASHES[tests.indexOf(each) % DASHES.length] : "");
  const last = ({ name }) => s.data[name][place(s, s.at[0], s.steps.length - 1) * 3];
  const ends = s.accuracies.map((each, i) => ({ at: y(last(each)), words: names[i] })).filter(({ at }) => Number.isFinite(at));
  return draw(x, y) + cursor(s, x, box) +
    (s.tested ? others(s).map((i) => faint(path(curve(s.data[s.tested], i, s.steps, x, y, 0)), DASHES[0])).join("") : "") +
    s.accuracies.map((each) => bandAndLine(s.data[each.name], s.at[0], s.steps, x, y, "currentColor", dashes(each)) +
      dot(x(s.steps[s.at[1]]), y(s.data[each.name][place(s, s.at[0]) * 3]), "currentColor")).join("") +
    spread(ends, 13, box).map(({ at, words }) => text(box.right + 7, at + 4, escaped(words))).join("");
}

// The axis of eigenfunctions, which is logarithmic: the first few carry most.
function countAxis(s, wide) {
  const every = wide ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000] : [1, 10, 100, 1000];
  return { xName: "eigenfunctions <tspan font-style='italic'>k</tspan>", xTicks: every.filter((v) => v <= s.width) };
}

// The rank of the outputs, where it is known; its name stands `down` below the top.
function rankMark(s, x, box, down = 8) {
  const rank = s.ranks?.[place(s, s.at[0])];
  return !rank ? "" : line(x(rank), box.top, x(rank), box.bottom, "rb-floor") +
    text(x(rank) + 5, box.top + down, `rank ${rank}`, { kind: "rb-small" });
}

function drawSpectrum(s, width, height) {
  const { box, draw } = frame(width, height, { ...countAxis(s, width > 260), left: 40,
    title: `${width > 260 ? "relative eigenvalue " : ""}<tspan font-style='italic'>ρ<tspan dy="3" font-size="75%">k</tspan></tspan><tspan dy="-3"> / </tspan><tspan font-style='italic'>ρ</tspan><tspan dy="3" font-size="75%">1</tspan>`,
    yTicks: [0, 1 / 3, 2 / 3, 1], yLabel: (v) => power(Math.round((v - 1) * 6)) });
  const x = logarithmic(1, Math.max(s.width, 2), box.left, box.right), y = linear(0, 1, box.bottom, box.top);
  const values = s.data.relative_eigenvalue, here = place(s, s.at[0]);
  return draw(x, y) + rankMark(s, x, box) +
    others(s).map((i) => faint(path(curve(values, place(s, i), s.k, x, y, 0)))).join("") +
    bandAndLine(values, here, s.k, x, y, COLORS.utilization) +
    curve(values, here, s.k, x, y, 0).map(([cx, cy]) => (Number.isFinite(cy) ? `<circle cx="${fixed(cx)}" cy="${fixed(cy)}" r="2.2" fill="${COLORS.utilization}"/>` : "")).join("");
}

function drawCurves(s, width, height) {
  const { box, draw } = frame(width, height, { ...countAxis(s, width > 260), yTicks: [0, 0.5, 1],
    title: width > 330 ? "share carried by the first <tspan font-style='italic'>k</tspan> eigenfunctions" : "share carried by first <tspan font-style='italic'>k</tspan>" });
  const x = logarithmic(1, Math.max(s.width, 2), box.left, box.right), y = linear(0, 1, box.bottom, box.top);
  const color = ({ name }, i) => COLORS[name] ?? OTHERS[i % OTHERS.length];
  const names = s.curves.map(({ name, words }) => (width > 260 ? SYMBOLS[name] ?? pretty(words) : SHORT[name] ?? pretty(words)));
  // Curves rise: where all are high in the middle the lower right is free, else the upper left.
  const middle = (place(s, s.at[0]) * s.k.length + (s.k.length >> 1)) * 3;
  const early = s.curves.every(({ name }) => s.data[name][middle] > 0.5);
  const left = early ? box.right - (width > 260 ? 116 : 46) : box.left + 8, top = early ? box.bottom - 15 * names.length : box.top + 5;
  return draw(x, y) + rankMark(s, x, box, early ? box.bottom - box.top - 40 : 8) +
    s.curves.map((each, i) => bandAndLine(s.data[each.name], place(s, s.at[0]), s.k, x, y, color(each, i))).join("") +
    s.curves.map((each, i) => `<path d="M${fixed(left)},${fixed(top + 15 * i)}h14" stroke="${color(each, i)}" stroke-width="3"/>` +
      text(left + 19, top + 4 + 15 * i, names[i])).join("");
}

// Puts the name of each point where it covers the least: right, left, above or below of it.
function besidePoints(points, box) {
  const taken = points.flatMap(({ x, y, bars: [l, r, b, t] }) => [[x - 7, y - 7, x + 7, y + 7], [l, y - 1, r, y + 1], [x - 1, t, x + 1, b]]);
  return points.map(({ x, y, words }) => {
    const wide = 6.6 * words.length, spots = [[x + 10, y + 4], [x - 10 - wide, y + 4], [x - wide / 2, y - 11], [x - wide / 2, y + 20],
      [x + 6, y - 10], [x + 6, y + 18], [x - 6 - wide, y - 10], [x - 6 - wide, y + 18]];
    const cost = ([left, base]) => {
      const [right, top] = [left + wide, base - 11];
      const covered = taken.map(([l, t, r, b]) => Math.max(0, Math.min(right, r) - Math.max(left, l)) * Math.max(0, Math.min(base + 2, b) - Math.max(top, t)));
      const outside = Math.max(0, box.left + 2 - left) + Math.max(0, right - box.right - 18) + Math.max(0, base - box.bottom + 4) + Math.max(0, box.top - 6 - top);
      return covered.reduce((sum, v) => sum + v, 100 * outside);
    };
    const [left, base] = spots.reduce((best, spot) => (cost(spot) < cost(best) ? spot : best));
    taken.push([left, base - 11, left + wide, base + 2]);
    return [left, base];
  });
}

// How every setting ended: the measure and the accuracy on test samples, with the seeds' ranges.
function drawEnds(s, width, height) {
  const end = s.steps.length - 1, of = (name, i) => [0, 1, 2].map((j) => s.data[name][place(s, i, end) * 3 + j]);
  const ends = s.axis.labels.map((words, i) => ({ words, i, a: of(s.measure.name, i), b: of(s.tested, i) }))
    .filter(({ a, b }) => Number.isFinite(a[0]) && Number.isFinite(b[0]));
  const title = `${spelled(s.accuracies.find(({ name }) => name === s.tested).words)} at the end`;
  if (!ends.length) return text(0, 13, `${title}: none is known`, { kind: "rb-title" });
  const [, right] = extent(ends.flatMap(({ a }) => a), false), all = ends.flatMap(({ b }) => b);
  const gap = Math.max(0.02, 0.12 * (Math.max(...all) - Math.min(...all)));
  const low = Math.max(0, Math.min(...all) - gap), high = Math.min(1 + gap / 4, Math.max(...all) + gap);
  const { box, draw } = frame(width, height, { title, left: 40, right: 20, xTicks: roundTicks(0, right, 5), yTicks: roundTicks(low, Math.min(high, 1), 5),
    xName: `${pretty(s.measure.words)} at the end${s.measure.name.startsWith("d_lr") ? " (rich is left)" : ""}` });
  const x = linear(0, right, box.left, box.right), y = linear(low, high, box.bottom, box.top);
  // The one that is chosen is named first and drawn last.
  const points = ends.map((each) => ({ ...each, x: x(each.a[0]), y: y(each.b[0]), here: each.i === s.at[0], words: shortened(each.words, 18),
    bars: [x(each.a[1]), x(each.a[2]), y(each.b[1]), y(each.b[2])] }))
    .sort((p, q) => q.here - p.here);
  const spots = besidePoints(points, box);
  return draw(x, y) + (s.axis.ordered ? faint(path(ends.map(({ a, b }) => [x(a[0]), y(b[0])])), "2 3") : "") +
    points.map((p, i) => {
      const color = p.here ? COLORS.measure : "currentColor";
      return `<g class="rb-cell" data-i="${p.i}"><title>${escaped(s.axis.labels[p.i])}</title>` +
        `<path d="M${fixed(x(p.a[1]))},${fixed(p.y)}H${fixed(x(p.a[2]))}M${fixed(p.x)},${fixed(y(p.b[1]))}V${fixed(y(p.b[2]))}" stroke="${color}" stroke-opacity="${p.here ? 1 : 0.5}" fill="none"/>` +
        `<circle cx="${fixed(p.x)}" cy="${fixed(p.y)}" r="${p.here ? 6 : 4}" fill="${color}"${p.here ? "" : ' fill-opacity="0.6"'}/>` +
        `<circle cx="${fixed(p.x)}" cy="${fixed(p.y)}" r="14" fill="transparent"/>` +
        label(spots[i][0], spots[i][1] - 4, p.words, p.here) + "</g>";
    }).reverse().join("");
}

function writeTable(s) {
  const rows = s.numbers.map(({ name, words }) => {
    const [mean, low, high] = [0, 1, 2].map((j) => number(s.data[name][place(s, s.at[0]) * 3 + j]));
    const range = low === high ? low : `${low} – ${high}`;
    return `<tr><th scope="row">${inHtml(words)}</th><td>${mean}</td>${s.seeds > 1 ? `<td>${range}</td>` : ""}</tr>`;
  });
  return `<table class="rb-numbers"><thead><tr><th scope="col">at step ${s.steps[s.at[1]]}</th><th scope="col">mean</th>` +
    `${s.seeds > 1 ? '<th scope="col">lowest – highest seed</th>' : ""}</tr></thead><tbody>${rows.join("")}</tbody></table>`;
}

// Reads the traits once: everything that does not change when a slider moves.
function load(model) {
  const contents = model.get("contents"), buffer = model.get("packed"), data = {};
  const cells = contents.axis.labels.length * contents.steps.length;
  const view = new DataView(buffer.buffer ?? buffer, buffer.byteOffset ?? 0);
  for (const [name, offset] of Object.entries(contents.scalars))
    data[name] = Float32Array.from({ length: cells * 3 }, (_, i) => view.getFloat32(offset + 4 * i, true));
  for (const [name, field] of Object.entries(contents.fields)) data[name] = unpack(buffer, field, cells);
  return { ...contents, data };
}

// The panels of a result, those left out of which it has nothing. `steps`: a click chooses a step.
const panelsOf = (s) => [
  { draw: drawMeasure, name: `${s.measure.words} during training`, tall: 200, steps: true },
  s.accuracies.length && { draw: drawAccuracies, name: "Accuracies during training", tall: 200, steps: true },
  s.fields.relative_eigenvalue && { draw: drawSpectrum, name: "Spectrum of the feature kernel", tall: 190, half: true },
  s.curves.length && { draw: drawCurves, name: "Cumulative curves over eigenfunctions", tall: 190, half: true },
  s.tested && s.tested !== s.measure.name && { draw: drawEnds, name: `How every ${s.axis.words} ended`, tall: 230 },
].filter(Boolean);

// The recorded step whose place in a panel is nearest to a pixel.
function nearestStep(s, panel, width, pixel) {
  const right = panel.draw === drawMeasure ? s.axis.labels.map((words) => shortened(words, 13)) : accuracyNames(s);
  const x = steps(s.steps, 34, width - roomFor(right));
  const far = s.steps.map((t) => Math.abs(x(t) - pixel));
  return far.indexOf(Math.min(...far));
}

// Plays the steps: from the start if they are at the end, to the end, or until it is told to stop.
function player(model, button, count) {
  let timer = null;
  const stop = () => { clearInterval(timer); timer = null; button.textContent = "Play"; button.classList.remove("rb-playing"); };
  const go = (step) => { model.set({ step }); model.save_changes(); };
  button.addEventListener("click", () => {
    if (timer !== null) return stop();
    if (model.get("step") >= count - 1) go(0);
    button.textContent = "Pause";
    button.classList.add("rb-playing");
    timer = setInterval(() => {
      if (model.get("step") < count - 1) go(model.get("step") + 1);
      if (model.get("step") >= count - 1) stop();
    }, Math.min(500, Math.max(150, 7000 / count)));
  });
  return { stop, playing: () => timer !== null };
}

function render({ model, el }) {
  const s = load(model), panels = panelsOf(s);
  el.classList.add("rb-explorer-view");
  el.innerHTML = '<div class="rb-result-top"><button type="button" class="rb-play" title="Play the steps of training">Play</button>' +
    '<div class="rb-explorer-readout"></div></div><div class="rb-explorer-panels rb-result-panels">' +
    panels.map(({ steps }) => `<svg role="img"${steps ? ' class="rb-steps"' : ""}></svg>`).join("") +
    '<div class="rb-result-table"></div></div><div class="rb-explorer-note"></div>';
  const [top, grid, note] = el.children, [button, readout] = top.children, table = grid.lastElementChild;
  const play = player(model, button, s.steps.length);
  button.hidden = s.steps.length === 1;

  function draw() {
    s.at = [model.get("setting"), model.get("step")];
    const width = el.clientWidth || 640, wide = width >= 620, words = s.readouts[place(s, s.at[0])];
    panels.forEach((panel, i) => {
      const svg = grid.children[i], w = wide || panel.half ? (width - 20) / 2 : width;
      panel.width = w;
      svg.style.gridColumn = wide || panel.half ? "auto" : "1 / -1";
      svg.setAttribute("viewBox", `0 0 ${w} ${panel.tall}`);
      svg.setAttribute("aria-label", `${panel.name}. ${words}`);
      svg.innerHTML = panel.draw(s, w, panel.tall);
    });
    table.style.gridColumn = wide ? "auto" : "1 / -1";
    table.innerHTML = (s.numbers.length ? writeTable(s) : "") + (s.ends ? `<p>${inHtml(s.ends)}</p>` : "");
    readout.setAttribute("aria-live", play.playing() ? "off" : "polite");
    readout.innerHTML = inHtml(`${s.axis.words} ${s.axis.labels[s.at[0]]}, step ${s.steps[s.at[1]]}: ${words}`);
    const value = s.data[s.measure.name][place(s, s.at[0]) * 3], floor = s.floor && s.data[s.floor][place(s, s.at[0]) * 3];
    if (floor > 0) el.style.setProperty("--rb-shade", `rgb(${shade(value / floor)})`);
    nameSliders(el, [s.axis, { words: "training step", labels: s.steps.map(String) }], s.at);
  }

  note.innerHTML = inHtml(`Lines are means over ${s.seeds} seed${s.seeds > 1 ? "s" : ""}${s.seeds > 1 ? ", bands their range" : ""}. ` +
    (s.axis.labels.length > 1 ? "Grey: the other settings. " : "") + `${s.gaps}${s.gaps ? " " : ""}` +
    `Click beside a curve to go to a step${s.tested && s.axis.labels.length > 1 ? ", a dot at the end to choose its setting" : ""}.`);
  ["setting", "step"].forEach((name) => model.on(`change:${name}`, draw));
  grid.addEventListener("click", (event) => {
    const cell = event.target.closest?.(".rb-cell"), svg = event.target.closest?.(".rb-steps");
    if (cell) model.set({ setting: +cell.dataset.i });
    else if (svg) {
      const panel = panels[[...grid.children].indexOf(svg)], box = svg.getBoundingClientRect();
      play.stop();
      model.set({ step: nearestStep(s, panel, panel.width, (event.clientX - box.left) * panel.width / box.width) });
    } else return;
    model.save_changes();
  });
  // Space and Enter press the button; a notebook around it would take them for itself.
  button.dataset.lmSuppressShortcuts = "true";
  button.addEventListener("keydown", (event) => event.stopPropagation());
  const observer = new ResizeObserver(() => draw());
  observer.observe(el);
  draw();
  keepKeys(el, draw);
  return () => { play.stop(); observer.disconnect(); };
}

export default { render };
