// A game of two networks that test alike: which one is richer? The pairs and the answers came with
// the page. What the reader sees follows from two traits: the round, and the answers so far.

const COLORS = { d_lr: "#d55e00" };
const NAMES = ["A", "B"];

// D_LR as a place on the rich-lazy axis, which is dark at 0 and light at the isotropic floor.
function drawPlace(s, width, d_lr) {
  const top = Math.max(s.floor || 0, d_lr, 0.05), x = linear(0, top, 2, width - 2), parts = 64;
  const strip = Array.from({ length: parts }, (_, i) => `<rect x="${fixed(x(top * i / parts))}" y="22" height="9" ` +
    `width="${fixed((width - 4) / parts + 0.8)}" fill="rgb(${shade(i / (parts - 1) * top / (s.floor || top))})"/>`);
  const at = x(d_lr), anchor = at < 34 ? "start" : at > width - 34 ? "end" : "middle";
  const floor = `${width > 260 ? "isotropic floor" : "floor"} ${+(s.floor || 0).toFixed(3)}`;
  return strip.join("") + `<path d="M${fixed(at)},31v-9l-4.5,-7h9l-4.5,7" fill="${COLORS.d_lr}" ` +
    `stroke="${COLORS.d_lr}" stroke-width="2"/>` +
    text(anchor === "start" ? 2 : anchor === "end" ? width - 2 : at, 10, `${SUBSCRIPT} ${d_lr.toFixed(3)}`,
      { anchor, more: 'style="font-weight:600"' }) +
    text(2, 44, "rich", { kind: "rb-small" }) + text(width - 2, 44, s.floor ? floor : "lazy", { anchor: "end", kind: "rb-small" });
}

// Reads the traits once. Every curve gets the shape that the drawings expect: three times the same.
function load(model) {
  const contents = model.get("contents"), rounds = model.get("rounds");
  const game = { ...contents, rounds };
  for (const name in contents.fields) {
    const values = unpack(model.get("packed"), contents.fields[name], rounds.length * 2);
    game[name] = Float32Array.from({ length: values.length * 3 }, (_, i) => values[Math.floor(i / 3)]);
  }
  return game;
}

const richer = (pair) => (pair[0].d_lr < pair[1].d_lr ? 0 : 1);

// What is said above the pair: the question, or whether the answer is right, and why.
function inWords(pair, answer) {
  if (answer === undefined)
    return "Both networks test alike. Which one is richer?" +
      "<small>Rich: the features hold little beyond what the outputs use, and that evenly.</small>";
  const best = richer(pair), [rich, lazy] = [pair[best], pair[1 - best]], name = NAMES[best], other = NAMES[1 - best];
  return `${answer === best ? "Right" : "No"}: ${name} is richer. D<sub>LR</sub> is ${rich.d_lr.toFixed(3)} in ${name} ` +
    `and ${lazy.d_lr.toFixed(3)} in ${other}, ${(lazy.d_lr / rich.d_lr).toFixed(1)} times as much.` +
    `<small>${compareCurves(rich, lazy, name, other)}</small>`;
}

// What the curves of utilisation say of the answer; they do not always give it away.
function compareCurves(rich, lazy, name, other) {
  const held = `${Math.round(rich.share * 100)} % of its outputs`;
  const words = `The first ${rich.needed} eigenfunctions of ${name} hold ${held}, in ${other} it takes ${lazy.needed}.`;
  return words + (rich.needed < lazy.needed ? "" :
    " That does not tell them apart: how strong the eigenfunctions are counts too, and no curve here shows it.");
}

function inSum(game, answers) {
  const right = answers.filter((answer, i) => answer === richer(game.rounds[i])).length;
  const guessing = answers.length === game.rounds.length ? `; guessing gets ${answers.length / 2} on average` : "";
  return answers.length ? ` · ${right} of ${answers.length} right${guessing}` : "";
}

function tellNetwork({ settings }) {
  return "<dl>" + settings.map(([words, value]) => `<dt>${words}</dt><dd>${value}</dd>`).join("") + "</dl>";
}

const PARTS = '<div class="rb-game-name"></div><svg role="img"></svg><svg role="img"></svg><div class="rb-game-told"></div>';
const PANELS = [
  { draw: drawAccuracy, name: "train and test accuracy during training", tall: 160 },
  { draw: drawUtilization, name: "cumulative utilisation at the end of training", tall: 160 },
];

function render({ model, el }) {
  const game = load(model);
  el.classList.add("rb-explorer-view", "rb-richer-game");
  el.innerHTML = '<div class="rb-game-sum"></div><div class="rb-game-words" aria-live="polite"></div><div class="rb-game-pair">' +
    NAMES.map((name) => `<div class="rb-game-network" role="group" aria-label="Network ${name}">${PARTS}</div>`).join("") +
    '</div><div class="rb-game-foot"><button type="button" class="rb-game-next"></button></div>';
  const [sum, words, pair, foot] = el.children, next = foot.firstChild;

  function drawNetwork(at, round, answer) {
    const box = pair.children[at], [name, ...more] = box.children, told = more.pop();
    const network = game.rounds[round][at], width = Math.max(name.clientWidth, 120);
    const state = { ...game, cell: round * 2 + at, family: { cells: [round * 2 + 1 - at] } };
    name.innerHTML = `${NAMES[at]} <small>test accuracy ${network.test_accuracy.toFixed(3)}</small>`;
    PANELS.forEach((panel, i) => {
      more[i].setAttribute("viewBox", `0 0 ${width} ${panel.tall}`);
      more[i].setAttribute("aria-label", `${NAMES[at]}: ${panel.name}`);
      more[i].innerHTML = panel.draw(state, width, panel.tall);
    });
    const known = answer !== undefined;
    box.classList.toggle("rb-richer", known && richer(game.rounds[round]) === at);
    if (known) told.innerHTML = `<svg role="img" aria-label="D_LR ${network.d_lr.toFixed(3)}" viewBox="0 0 ${width} 50">` +
      drawPlace(state, width, network.d_lr) + "</svg>" + tellNetwork(network);
    else if (!told.querySelector("button"))
      told.innerHTML = `<button type="button" class="rb-game-choice" data-choice="${at}">${NAMES[at]} is richer</button>`;
  }

  function draw() {
    const round = model.get("round"), answers = model.get("answers"), answer = answers[round];
    NAMES.forEach((_, at) => drawNetwork(at, round, answer));
    words.innerHTML = inWords(game.rounds[round], answer);
    sum.textContent = `Pair ${round + 1} of ${game.rounds.length}${inSum(game, answers)}`;
    next.textContent = round === game.rounds.length - 1 ? "Play again" : "Next pair";
    next.style.visibility = answer === undefined ? "hidden" : "visible";
  }

  // Changes the traits, and puts the focus where the next thing to do is.
  function change(traits, focus) {
    model.set(traits);
    model.save_changes();
    draw();
    el.querySelector(focus)?.focus({ preventScroll: true });
  }

  el.addEventListener("click", (event) => {
    const button = event.target.closest?.("button"), answers = model.get("answers"), round = model.get("round");
    if (!button) return;
    if (button !== next) change({ answers: [...answers, +button.dataset.choice] }, ".rb-game-next");
    else if (round < game.rounds.length - 1) change({ round: round + 1 }, ".rb-game-choice");
    else change({ round: 0, answers: [] }, ".rb-game-choice");
  });
  // Keys that press a button are for the button, not for the notebook around it.
  el.addEventListener("keydown", (event) => { if (/^(Enter| |Arrow)/.test(event.key)) event.stopPropagation(); });
  for (const name of ["round", "answers"]) model.on(`change:${name}`, draw);
  const observer = new ResizeObserver(() => draw());
  observer.observe(el);
  draw();
  return () => observer.disconnect();
}

export default { render };
