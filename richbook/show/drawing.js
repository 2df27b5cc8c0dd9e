// What the drawings of recorded sweeps have in common: reading packed numbers, scales, lines and
// bands, the frame of a panel. It is put in front of the script of each of them.

const hexColors = (list) => list.map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));
const VIRIDIS = hexColors(
  ["440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"]);

// The colour at a fraction of an axis from 0 to 1; of the rich-lazy axis, where 0 is rich and dark
// and 1 is the isotropic floor, unless other colours are given.
function shade(fraction, colors = VIRIDIS) {
  if (!Number.isFinite(fraction)) return [153, 153, 153];
  const place = Math.min(Math.max(fraction, 0), 1) * (colors.length - 1);
  const low = Math.min(Math.floor(place), colors.length - 2);
  return colors[low].map((c, i) => Math.round(c + (place - low) * (colors[low + 1][i] - c)));
}

// Reads the codes of `pack`: the largest one is nan. Returns for each cell `length` times `per`
// numbers in a row, by default triples (mean, low, high).
function unpack(buffer, { offset, bits, length, per = 3 }, cells) {
  const view = new DataView(buffer.buffer ?? buffer, buffer.byteOffset ?? 0);
  const size = bits / 8, missing = 2 ** bits - 1, values = new Float32Array(cells * length * per);
  for (let i = 0; i < values.length; i++) {
    const at = offset + i * size;
    const code = size === 1 ? view.getUint8(at) : view.getUint16(at, true);
    values[i] = code === missing ? NaN : code / (missing - 1);
  }
  return values;
}

// Scales: from data to pixels. Steps are logarithmic with a place for step 0.
const linear = (low, high, from, to) => (v) => from + ((v - low) / (high - low || 1)) * (to - from);
function steps(list, from, to) {
  const place = (t) => (list[0] < 1 ? (t < 1 ? t * 0.4 : 0.4 + Math.log10(t)) : Math.log10(t));
  if (list.length === 1) return () => (from + to) / 2;
  const scale = linear(place(list[0]), place(list[list.length - 1]), from, to);
  return (t) => scale(place(t));
}

// D_LR and the estimated Π as they are written in titles.
const SUBSCRIPT = 'D<tspan dy="3" font-size="75%">LR</tspan><tspan dy="-3">\u200b</tspan>';
const HAT_PI = 'Π<tspan dx="-9" dy="-4">^</tspan><tspan dy="4" dx="1">\u200b</tspan>';

const fixed = (v) => v.toFixed(1);
const text = (x, y, words, { anchor = "start", kind = "", more = "" } = {}) =>
  `<text x="${fixed(x)}" y="${fixed(y)}" text-anchor="${anchor}" class="${kind}" ${more}>${words}</text>`;
const line = (x1, y1, x2, y2, kind) =>
  `<line x1="${fixed(x1)}" y1="${fixed(y1)}" x2="${fixed(x2)}" y2="${fixed(y2)}" class="${kind}"/>`;

// A path through points; a point that is nan lifts the pen. A single point is a ring.
function path(points) {
  if (points.length === 1 && Number.isFinite(points[0][1]))
    return `M${fixed(points[0][0] - 3)},${fixed(points[0][1])}a3,3 0 1,0 6,0a3,3 0 1,0 -6,0`;
  let pen = "M";
  return points.map(([x, y]) => {
    if (!Number.isFinite(y)) { pen = "M"; return ""; }
    const part = `${pen}${fixed(x)},${fixed(y)}`;
    pen = "L";
    return part;
  }).join("");
}

// One curve of a cell as pixels: `which` 0 is the mean over seeds, 1 the smallest, 2 the largest.
const curve = (values, cell, xs, x, y, which) =>
  xs.map((at, i) => [x(at), y(values[(cell * xs.length + i) * 3 + which])]);

// `dashes` is the pattern of the line, or true for the usual one.
function bandAndLine(values, cell, xs, x, y, color, dashes) {
  const low = curve(values, cell, xs, x, y, 1).filter((p) => Number.isFinite(p[1]));
  const high = curve(values, cell, xs, x, y, 2).filter((p) => Number.isFinite(p[1]));
  const outline = high.length ? path([...high, ...low.reverse()]) + "Z" : "";
  return `<path d="${outline}" fill="${color}" fill-opacity="0.22"/>` +
    `<path class="rb-line" d="${path(curve(values, cell, xs, x, y, 0))}" fill="none" ` +
    `stroke="${color}"${dashes ? ` stroke-dasharray="${dashes === true ? "6 4" : dashes}"` : ""}/>`;
}

// The box of a panel: title, axes, ticks and names. Returns the scales' ranges and the markup.
// Ticks are written as they are, those of the y axis as `yLabel` says.
function frame(width, height, { title, xName, xTicks, yTicks, right = 14, left = 34,
  yLabel = (v) => v }) {
  const box = { left, right: width - right, top: 30, bottom: height - 38 };
  const draw = (x, y) => text(0, 13, title, { kind: "rb-title" }) +
    yTicks.map((v) => line(box.left, y(v), box.right, y(v), "rb-grid") +
      text(box.left - 6, y(v) + 4, yLabel(v), { anchor: "end" })).join("") +
    xTicks.map((v) => line(x(v), box.bottom, x(v), box.bottom + 4, "rb-axis") +
      text(x(v), box.bottom + 17, v, { anchor: "middle" })).join("") +
    line(box.left, box.bottom, box.right, box.bottom, "rb-axis") +
    line(box.left, box.top - 4, box.left, box.bottom, "rb-axis") +
    text((box.left + box.right) / 2, box.bottom + 33, xName, { anchor: "middle" });
  return { box, draw };
}

function decades(list, wide) {
  const ends = [list[0], list[list.length - 1]];
  const found = [0, 1, 10, 100, 1000, 10000, 100000]
    .filter((t) => t >= ends[0] && t <= ends[1] && (wide || t === 1 || t === 100 || t === 10000));
  return found.length ? found : [...new Set(ends)];
}

function drawAccuracy(s, width, height) {
  const { box, draw } = frame(width, height, { right: 44,
    title: width > 260 ? "accuracy (fraction correct)" : "accuracy (fraction)",
    xName: "training step <tspan font-style='italic'>t</tspan> (updates)",
    xTicks: decades(s.steps, width > 300), yTicks: [0, 0.5, 1] });
  const x = steps(s.steps, box.left, box.right), y = linear(0, 1, box.bottom, box.top);
  const last = (values) => values[(s.cell * s.steps.length + s.steps.length - 1) * 3];
  const ends = [["train", last(s.train_accuracy)], ["test", last(s.test_accuracy)]]
    .filter(([, v]) => Number.isFinite(v)).map(([label, v]) => ({ at: y(v), label }));
  return draw(x, y) + bandAndLine(s.train_accuracy, s.cell, s.steps, x, y, "currentColor") +
    bandAndLine(s.test_accuracy, s.cell, s.steps, x, y, "currentColor", true) +
    spread(ends, 13, box).map(({ at, label }) => text(box.right + 5, at + 4, label)).join("");
}

// Cumulative utilization of a cell at the end of training; that of its family is drawn in grey.
const UTILIZATION = "#0072b2";
function drawUtilization(s, width, height) {
  const most = s.k[s.k.length - 1];
  const { box, draw } = frame(width, height, {
    title: `${width > 260 ? "cumulative utilisation" : "utilisation"} ${HAT_PI}(<tspan font-style="italic">k</tspan>)`,
    xName: "eigenfunctions <tspan font-style='italic'>k</tspan>", yTicks: [0, 0.5, 1],
    xTicks: [1, Math.round(most / 4), Math.round(most / 2), most] });
  const x = linear(1, most, box.left, box.right), y = linear(0, 1, box.bottom, box.top);
  const others = s.family.cells.filter((cell) => cell !== s.cell);
  const rank = s.rank == null ? "" : line(x(s.rank), box.top, x(s.rank), box.bottom, "rb-floor") +
    text(x(s.rank) + 5, box.bottom - 6, `rank ${s.rank}`, { kind: "rb-small" });
  return draw(x, y) + rank +
    others.map((cell) => `<path class="rb-other" fill="none" d="${path(curve(s.utilization, cell, s.k, x, y, 0))}"/>`).join("") +
    bandAndLine(s.utilization, s.cell, s.k, x, y, UTILIZATION);
}

// Moves labels as little as it takes to be `gap` pixels apart and inside the box.
function spread(labels, gap, box) {
  labels.sort((a, b) => b.at - a.at);
  let limit = box.bottom;
  for (const label of labels) { label.at = Math.min(label.at, limit); limit = label.at - gap; }
  limit = box.top;
  for (const label of labels.reverse()) { label.at = Math.max(label.at, limit); limit = label.at + gap; }
  return labels;
}

// Slider handles have no name of their own, and their value is only a position.
function nameSliders(el, axes, at) {
  const handles = el.closest(".rb-explorer")?.querySelectorAll(".noUi-handle") ?? [];
  const movable = axes.map((_, i) => i).filter((i) => axes[i].labels.length > 1);
  movable.forEach((i, position) => {
    handles[position]?.setAttribute("aria-label", axes[i].words);
    handles[position]?.setAttribute("aria-valuetext", axes[i].labels[at[i]]);
  });
}

// Keys that move a slider are for the slider, not for the notebook around it. The sliders are there
// a moment after the drawing, which then names them.
function keepKeys(el, draw) {
  const keep = (event) => { if (/^(Arrow|Page|Home|End)/.test(event.key)) event.stopPropagation(); };
  requestAnimationFrame(() => {
    el.closest(".rb-explorer")?.addEventListener("keydown", keep);
    draw();
  });
}
