// The page: what the server says (`state`), what changes it (lessons, undo, forget, rename), and the three panes that show it.

import * as browser from "./samples.js";
import { Refused, Unreachable, download, get, hasToken, learn, post, postSamples, predict } from "./service.js";
import { requests, setToken, stream, takeToken } from "./service.js";
import { bars, bytes, clock, count, day, el, key, list, matrix, name, percent, question, shown, sizeLine, thumb } from "./views.js";

/** @typedef {import("./service.js").Sample} Sample */
/** @typedef {import("./service.js").Lesson} Lesson */
/** @typedef {import("./samples.js").Kept} Kept */
/** @typedef {{lessons: Lesson[], checks: number, records: Kept[], stored: boolean}} Plan Samples cut into lessons. */

const REJECT = 0.05;
const EVERY = 5; // of a class's samples, every fifth is kept back
const MOST_CHECKS = 40; // per class: the whole check set is predicted after each change
const AUDIT_SAMPLES = 12; // taught samples per class and lesson that are kept whole, for the audit; of others a thumbnail
const TRAY = 48; // thumbnails shown before teaching
const POLL = 5000;

const $ = (id) => document.getElementById(id);
const state = { status: null, classes: [], lessons: [], samples: [], history: [], seen: 0, signature: "" };
const draft = { photos: [], plan: null, preparing: Promise.resolve() };

// --- The server's state ------------------------------------------------------------------------------------------------------

let turns = 0; // refreshes and changes, in the order they began
let newest = 0; // the newest of them that is on the page: older answers are dropped
let stored = true; // has this browser's storage changed since it was read?

/** Read everything from the server, and show it if it differs. An answer from before a later change is dropped. */
async function refresh() {
  const turn = ++turns;
  try {
    const answers = await Promise.all([get("/status"), get("/classes"), get("/lessons")]);
    if (turn < newest) return;
    newest = turn;
    const [status, classes, lessons] = answers;
    const signature = JSON.stringify(answers);
    connected();
    if (signature === state.signature && !stored) return;
    stored = false;
    const kept = await browser.kept(status.model);
    if (turn < newest) return void (stored = true);
    Object.assign(state, { status, classes, lessons, signature, samples: kept.samples });
    state.history = await ownHistory(kept.history);
    render();
  } catch (error) {
    if (turn >= newest) disconnected(error);
  }
}

/** A change is done: older answers no longer count. Read the new state, then measure it. */
async function settle(title) {
  newest = ++turns;
  stored = true;
  await refresh();
  await measure(title);
}

let queue = Promise.resolve();
let waiting = 0;

/** Changes and measurements run one after the other. */
function inTurn(work) {
  waiting++;
  const run = queue.then(work).finally(() => waiting--);
  queue = run.catch(() => {});
  return run;
}

let unmeasured = { key: "", since: 0 }; // the state at the last poll, and when it was first seen

async function poll() {
  if (document.visibilityState !== "visible" || !$("token-panel").hidden) return;
  await refresh();
  if (waiting || !state.status || !$("banner").hidden) return;
  // Another tab that has just changed the model measures it itself, and knows why; step in if it does not.
  if (unmeasured.key !== stateKey()) unmeasured = { key: stateKey(), since: Date.now() };
  else if (Date.now() - unmeasured.since > POLL * 0.8) await inTurn(() => measure()).catch(disconnected);
}

function connected() {
  state.seen = Date.now();
  $("connection").replaceChildren("Connected");
  $("connection").className = "on";
  $("banner").hidden = true;
  $("token-panel").hidden = true;
  $("studio").hidden = $("tabs").hidden = false;
}

function disconnected(error) {
  if (error instanceof Refused && [401, 403].includes(error.status)) return askToken(error);
  const lost = error instanceof Unreachable;
  $("connection").replaceChildren(lost ? "Reconnecting…" : "Error");
  $("connection").className = "off";
  const since = state.seen ? ` What you see is from ${clock(state.seen)}.` : "";
  const text = `${shown(error.message)}${lost ? " This page goes on by itself." : ""}${since}`;
  if ($("banner").textContent !== text) $("banner").replaceChildren(text); // said once, not at each attempt
  $("banner").hidden = false;
}

function askToken(error) {
  const open = !$("token-panel").hidden;
  $("studio").hidden = $("tabs").hidden = $("banner").hidden = true;
  $("token-panel").hidden = false;
  $("connection").replaceChildren("Not connected");
  $("connection").className = "off";
  const how = "Open the address that “cldnet studio” shows in the terminal (it ends in #token=…), or paste it here.";
  const why = hasToken() ? `${shown(error.message)} A server that was started again may have a new token. ` : "";
  if (!open) {
    $("token-reason").replaceChildren(why + how);
    $("token-field").focus();
  }
}

// --- Lessons -----------------------------------------------------------------------------------------------------------------

const noun = (number, kind = state.status.noun) => count(number, { photo: "photo", text: "sentence" }[kind] ?? "sample");

/** What was typed, in the type of the model's labels: a model of the digits 0–9 knows 5, not "5". */
function toLabel(text) {
  const typed = text.trim();
  const known = state.classes.find(({ label }) => String(label) === typed);
  if (known) return known.label;
  const numbers = state.classes.length && state.classes.every(({ label }) => typeof label === "number");
  return numbers && typed && Number.isFinite(Number(typed)) ? Number(typed) : typed;
}

/** Check samples: every fifth of each class with five or more. @param {Sample[]} samples */
function keptBack(samples) {
  const checks = new Set();
  for (const group of Map.groupBy(samples, ({ label }) => key(label)).values()) {
    const room = MOST_CHECKS - liveChecks().filter(({ label }) => label === group[0].label).length;
    const fifths = group.filter((_, i) => i % EVERY === EVERY - 1);
    for (const sample of fifths.slice(0, Math.max(0, room))) checks.add(sample);
  }
  return checks;
}

/** A unique name for a lesson; the server cuts nothing off it. */
const lessonName = (title) => `${[...shown(title)].slice(0, 150).join("")} · ${browser.code(6)}`;
const labelsOf = (samples) => [...new Map(samples.map(({ label }) => [key(label), label])).values()];

/** Cut samples into lessons (one, if it fits into a request) and check samples. @returns {Plan} */
function plan(samples, keep, title) {
  const checks = keep ? keptBack(samples) : new Set();
  const groups = requests(samples.filter((sample) => !checks.has(sample)), state.status.limits);
  const lessons = groups.map((group) => ({ name: lessonName(title ?? list(labelsOf(group))), samples: group, done: false }));
  const whole = new Map();
  const keepsData = ({ kind, label }, lesson) => {
    const group = lesson + key(label);
    whole.set(group, (whole.get(group) ?? 0) + 1);
    return kind === "text" || whole.get(group) <= AUDIT_SAMPLES;
  };
  const record = (sample, lesson, check) => ({
    ...sample,
    data: check || keepsData(sample, lesson) ? sample.data : null,
    ...{ id: browser.code(16), model: state.status.model, lesson, check, order: Date.now() },
  });
  const records = lessons.flatMap((lesson) => lesson.samples.map((sample) => record(sample, lesson.name, false)));
  for (const sample of checks) {
    const home = lessons.find((lesson) => lesson.samples.some(({ label }) => label === sample.label));
    records.push(record(sample, home.name, true));
  }
  records.forEach((one, i) => (one.order += i / 10_000));
  return { lessons, checks: checks.size, records, stored: false };
}

/** Samples that count: the model has their lesson and their class. Others belong to lessons that were lost, undone or forgotten. */
function live() {
  const lessons = new Set(state.lessons.map((lesson) => lesson.name));
  const labels = new Set(state.classes.map(({ label }) => key(label)));
  return state.samples.filter((sample) => lessons.has(sample.lesson) && labels.has(key(sample.label)));
}
const liveChecks = () => live().filter(({ check }) => check);

/** Keep a plan's samples before it is sent: if the tab closes in the middle, they count as soon as the model has the lesson. */
async function store(plan, notes) {
  if (plan.stored) return;
  plan.stored = true;
  await browser.put("samples", plan.records).catch((error) => notes.push(error.message));
}

const discard = (plan, lesson) => browser.remove("samples", plan.records.filter((record) => record.lesson === lesson.name));

/**
 * Teach a plan's lessons, one after the other, and say what was learned. After a failure of the network the same plan can be
 * run again: what the server has learned already is not taught twice.
 * @param {Plan} plan @param {HTMLElement} output @param {HTMLProgressElement} [progress]
 */
async function teach(plan, output, progress) {
  const total = { samples: 0, seconds: 0, skipped: [], labels: [], notes: [] };
  await store(plan, total.notes);
  if (progress) progress.hidden = false;
  try {
    for (const [i, lesson] of plan.lessons.entries()) {
      if (lesson.done) continue;
      const part = plan.lessons.length > 1 ? ` (part ${i + 1} of ${plan.lessons.length})` : "";
      if (progress && plan.lessons.length > 1) progress.value = i / plan.lessons.length;
      say(output, `Teaching ${noun(lesson.samples.length, lesson.samples[0].kind)} of ${list(labelsOf(lesson.samples))}${part}…`);
      const answer = await teachOne(plan, lesson, output);
      lesson.done = true;
      if (answer) tally(total, answer, lesson);
      say(output, ...(answer || total.classes ? learned(total, plan) : ["Not taught."]));
      if (answer) await settle();
    }
  } finally {
    if (progress) {
      progress.hidden = true;
      progress.removeAttribute("value");
    }
  }
}

/** Send one lesson; if its data were taught before, ask. @returns the server's answer, or null if it is not to be taught */
async function teachOne(plan, lesson, output) {
  const start = performance.now();
  const wait = (attempt, of) => {
    say(output, `Reconnecting… (${attempt} of ${of}). Nothing is lost, and nothing is taught twice.`);
    disconnected(new Unreachable());
  };
  try {
    const answer = await learn(lesson, false, wait);
    return { ...answer, seconds: (performance.now() - start) / 1000 };
  } catch (error) {
    if (error instanceof Unreachable) throw error; // the plan stays as it is, for another try
    if (error.status !== 409) {
      await discard(plan, lesson);
      throw error;
    }
    const text = `${shown(error.message)} Teach these samples again?`;
    if ((await question(output, text, ["Teach again", "Cancel"])) === 1) return void (await discard(plan, lesson));
    const again = performance.now();
    return { ...(await learn(lesson, true, wait)), seconds: (performance.now() - again) / 1000 };
  }
}

function tally(total, answer, lesson) {
  total.samples += answer.lesson?.total ?? lesson.samples.length;
  total.seconds += answer.seconds;
  total.skipped.push(...(answer.skipped ?? []));
  total.labels = labelsOf([...total.labels.map((label) => ({ label })), ...lesson.samples]);
  total.classes = answer.classes;
  total.kind = lesson.samples[0].kind;
}

/** The result of a lesson in sentences. */
function learned(total, { checks }) {
  const what = `${noun(total.samples, total.kind)} of ${list(total.labels)}`;
  const seconds = Math.max(0.1, total.seconds).toFixed(1);
  const lines = [`Learned ${what} in ${seconds} s. The model knows ${count(total.classes, "class")}.`];
  if (checks) lines.push(el("p.hint", {}, `${noun(checks, total.kind)} kept back in this browser as a check.`));
  for (const note of total.notes) lines.push(el("p.error", {}, note));
  if (!total.skipped.length) return lines;
  const line = ({ name: file, reason }) => el("li", {}, name(file), `: ${shown(reason)}`);
  const rest = total.skipped.length - 5;
  const items = total.skipped.slice(0, 5).map(line);
  if (rest > 0) items.push(el("li", {}, `and ${rest} more`));
  return [...lines, el("p.hint", {}, `Not learned: ${count(total.skipped.length, "file")}.`), el("ul.hint", {}, items)];
}

const say = (output, ...content) =>
  output.replaceChildren(...content.map((one) => (typeof one === "string" ? el("p", {}, one) : one)));

function fail(output, error) {
  const lost = error instanceof Unreachable ? " Nothing is lost: then press the same button again." : "";
  say(output, el("p.error", {}, el("b", {}, "Error: "), shown(error.message) + lost));
  if (error.name !== "Error") console.warn(error); // a mistake of this page, not of its user
  if ([401, 403].includes(error.status)) askToken(error);
}

/** Do what a button stands for, once at a time, and show an error as its sentence. */
async function act(button, output, work) {
  if (button.getAttribute("aria-disabled") === "true") return;
  button.setAttribute("aria-disabled", "true"); // unlike `disabled`, this keeps the focus where it is
  try {
    await work();
  } catch (error) {
    fail(output, error);
  } finally {
    button.removeAttribute("aria-disabled");
  }
}

// --- The check set -----------------------------------------------------------------------------------------------------------

const lessonKey = (lesson) => lesson && (lesson.name ?? `${lesson.number}/${lesson.action}/${lesson.digest}`);

/** Changes with every lesson, undo, forgetting and renaming. */
const stateKey = () =>
  JSON.stringify([state.lessons.length, lessonKey(state.lessons.at(-1)), state.classes.map(({ label }) => label)]);

/** Measurements of this model. Those of another one that had its name are removed: none of their lessons is known. */
async function ownHistory(history) {
  const lessons = new Set(state.lessons.map(lessonKey));
  if (!history.length || history.some(({ lesson }) => lessons.has(lesson))) return history;
  await browser.remove("history", history);
  return [];
}

/** Samples of lessons that the model has not got, an hour later: it will not get them any more. */
async function prune() {
  const lessons = new Set(state.lessons.map((lesson) => lesson.name));
  const lost = state.samples.filter(({ lesson, order }) => !lessons.has(lesson) && order < Date.now() - 3_600_000);
  if (lost.length) await browser.remove("samples", lost);
}

/** Predict the whole check set and store the accuracy per class, unless this state of the model has been measured. */
async function measure(title) {
  const now = stateKey();
  const last = state.history.at(-1);
  if (!state.classes.length || last?.state === now) return;
  const checks = liveChecks();
  $("measure-progress").hidden = !checks.length;
  try {
    const predictions = await predict(checks, state.status.limits);
    await refresh();
    // The model changed meanwhile (then the next poll measures it), or another tab has measured it.
    if (stateKey() !== now || state.history.at(-1)?.state === now) return;
    const lesson = lessonKey(state.lessons.at(-1)) ?? null;
    const turn = (last?.turn ?? 0) + 1; // two tabs that measure the same state write the same record
    const record = { id: `${state.status.model}\n${turn}`, model: state.status.model, turn, state: now, lesson };
    const seen = state.history.some((row) => row.lesson === lesson);
    record.title = title ?? (seen ? "Changed elsewhere" : lessonTitle(state.lessons.at(-1)));
    await browser.put("history", [{ ...record, bytes: state.status.bytes, accuracy: accuracies(checks, predictions) }]);
    stored = true;
    await refresh();
  } finally {
    $("measure-progress").hidden = true;
  }
}

/** Right answers per class, in the order the classes were taught. */
function accuracies(checks, predictions) {
  const classes = new Map();
  checks.forEach(({ label }, i) => {
    if (predictions[i].error) return;
    const one = classes.get(key(label)) ?? { label, right: 0, total: 0 };
    one.right += key(predictions[i].label) === key(label) ? 1 : 0;
    one.total += 1;
    classes.set(key(label), one);
  });
  return [...classes.values()];
}

const lessonTitle = (lesson) => (lesson ? `Lesson ${lesson.number}: ${lessonWhat(lesson)}` : "Start");

/** The classes of a lesson, or its name where no counts are kept. */
const lessonLabels = ({ samples, name: title }) =>
  samples ? list(samples.map(([label]) => label)) : shown(title ?? "several classes");
const lessonWhat = (lesson) => `${{ forgot: "forgot ", merged: "merged " }[lesson.action] ?? ""}${lessonLabels(lesson)}`;

// --- Teach -------------------------------------------------------------------------------------------------------------------

/** Take in files with their paths: cut them down one by one, so that memory stays small. */
function addFiles(files) {
  draft.preparing = draft.preparing.then(async () => {
    const { files: found, suggestion, left } = browser.byFolder(await files);
    if (suggestion && !$("teach-label").value) $("teach-label").value = suggestion;
    const others = left ? ` Left out of the folder: ${count(left, "file")} that ${left > 1 ? "are no photos" : "is no photo"}.` : "";
    for (const [i, { file, label }] of found.entries()) {
      if (i % 10 === 0) say($("teach-result"), `Preparing photo ${i + 1} of ${found.length}…`);
      draft.photos.push(await browser.photo(file, label));
    }
    say($("teach-result"), found.length ? `${noun(found.length, "photo")} ready.${others}` : "There is no photo in it.");
    changed();
  });
  return draft.preparing;
}

/** The samples to teach; a label from a folder comes before the label field. @returns {Sample[]} */
function draftSamples() {
  const typed = $("teach-label").value.trim() ? toLabel($("teach-label").value) : null;
  const photos = draft.photos.map((sample) => ({ ...sample, label: sample.label === null ? typed : toLabel(sample.label) }));
  return [...photos, ...browser.sentences($("teach-sentences").value, typed)];
}

/** The draft is another one: a plan made for the old one no longer fits. */
function changed() {
  draft.plan = null;
  $("teach-label").removeAttribute("aria-invalid");
  renderTray();
  if (!state.status) return;
  const samples = draftSamples();
  const back = $("teach-keep").checked ? keptBack(samples).size : 0;
  const counts = `${noun(samples.length, samples[0]?.kind)}: ${samples.length - back} to teach, ${back} to keep back.`;
  const rule = `For classes with five or more samples, at most ${MOST_CHECKS} per class.`;
  const where = back ? "What is kept back is not taught, and stays in this browser." : "They are not taught, and stay in this browser.";
  $("teach-plan").replaceChildren(`${back ? counts : rule} ${where}`);
}

function renderTray() {
  const remove = (sample, i) => () => {
    draft.photos.splice(draft.photos.indexOf(sample), 1);
    changed();
    ($("teach-tray").querySelectorAll(".tray button")[Math.min(i, draft.photos.length - 1)] ?? $("teach-drop")).focus();
  };
  const item = (sample, i) =>
    el("li", {}, thumb(sample.thumb), sample.label !== null && el("span.tag", {}, name(sample.label)),
      el("button", { type: "button", "aria-label": `Remove ${shown(sample.name)}`, click: remove(sample, i) }, "×"));
  const { photos } = draft;
  if (!photos.length) return $("teach-tray").replaceChildren();
  const more = photos.length > TRAY ? ` The first ${TRAY} are shown.` : "";
  const empty = () => {
    draft.photos = [];
    changed();
    $("teach-drop").focus();
  };
  const head = el("p.row.between", {}, `${noun(photos.length, "photo")} chosen.${more}`,
    el("button.link", { type: "button", id: "teach-clear", click: empty }, "Remove all"));
  $("teach-tray").replaceChildren(head, el("ul.tray", { "aria-label": "Chosen photos" }, photos.slice(0, TRAY).map(item)));
}

async function teachDraft() {
  await draft.preparing;
  const samples = draftSamples();
  const problem = !samples.length
    ? "Choose photos or write sentences first."
    : new Set(samples.map(({ kind }) => kind)).size > 1
      ? "A model takes photos or sentences, not both. Remove the photos or the sentences."
      : null;
  if (problem) throw new Error(problem);
  if (samples.some(({ label }) => label === null)) {
    $("teach-label").setAttribute("aria-invalid", "true");
    $("teach-label").focus();
    throw new Error("Say what these are: write a label.");
  }
  const current = (draft.plan ??= plan(samples, $("teach-keep").checked));
  await inTurn(() => teach(current, $("teach-result"), $("teach-progress"))).catch((error) => {
    if (!(error instanceof Unreachable)) draft.plan = null; // it was refused: the next try is another lesson
    throw error;
  });
  if (draft.plan !== current) return; // something was added meanwhile
  draft.photos = [];
  $("teach-sentences").value = $("teach-label").value = "";
  changed();
}

/** The camera, opened and closed by one button. */
function cameraButton(button, place, action, onShot) {
  let open = null;
  const close = () => {
    open.stop();
    open = null;
    place.replaceChildren();
    button.replaceChildren("Use camera");
    button.setAttribute("aria-expanded", "false");
  };
  button.hidden = !navigator.mediaDevices?.getUserMedia;
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", () =>
    act(button, place, async () => {
      if (open) return close();
      const video = el("video", { muted: true, playsinline: true, "aria-label": "Picture of the camera" });
      place.replaceChildren(video);
      open = await browser.camera(video).catch(() => {
        throw new Error("The camera cannot be used. Allow it for this page in the browser, or choose photos instead.");
      });
      const shoot = el("button.strong", { type: "button" }, action);
      shoot.addEventListener("click", () => act(shoot, place, async () => onShot(await open.shoot())));
      place.append(el("p.row", {}, shoot));
      button.replaceChildren("Close camera");
      button.setAttribute("aria-expanded", "true");
      shoot.focus();
    }),
  );
}

/** The files of a chooser with their paths. It is emptied, so that the same files can be chosen again. */
function chosen(input) {
  const files = Array.from(input.files, (file) => ({ file, path: file.webkitRelativePath || file.name }));
  input.value = "";
  return files;
}

/** A drop zone: a section takes the drop, its button opens the file chooser. */
function dropZone(section, button, input, take) {
  button.addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    take(chosen(input));
  });
  section.addEventListener("dragover", () => button.classList.add("over"));
  section.addEventListener("dragleave", (event) => section.contains(event.relatedTarget) || button.classList.remove("over"));
  section.addEventListener("drop", (event) => {
    button.classList.remove("over");
    if (event.dataTransfer.files.length && !button.closest("[hidden]")) take(browser.dropped(event.dataTransfer));
  });
}

// --- Ask ---------------------------------------------------------------------------------------------------------------------

async function ask(samples) {
  const { limits, rejects } = state.status;
  say($("ask-status"), `Asking about ${noun(samples.length, samples[0].kind)}…`);
  const predictions = await predict(samples, limits, { top: 3, ...(rejects && { reject: REJECT }) });
  const cards = samples.map((sample, i) => card(sample, predictions[i]));
  $("ask-results").prepend(...cards);
  say($("ask-status"), predictions.length > 1 ? `${count(predictions.length, "answer")}.` : `Answer: ${verdict(predictions[0])}.`);
}

const askFiles = (files) =>
  act($("ask-drop"), $("ask-status"), async () => {
    const samples = [];
    for (const { file } of browser.byFolder(await files).files) samples.push(await browser.photo(file));
    if (samples.length) await ask(samples);
  });

function verdict({ error, label, top }) {
  if (error) return shown(error);
  return label === null ? "I don’t know this" : `${shown(label)}, ${percent(top[0].probability)}`;
}

/** One answer: the sample, what the model thinks, and a way to correct it. */
function card(sample, prediction) {
  const answer = el("div");
  const result = el("div", { role: "status" });
  const asked = { photo: () => thumb(sample.thumb, `Asked: ${shown(sample.name)}`), text: () => el("blockquote", {}, shown(sample.data)) };
  const picture = asked[sample.kind]();
  const item = el("li", { class: `card ${sample.kind}` }, picture, answer);
  showAnswer(answer, prediction);
  if (prediction.error) return item;
  const id = `it-is-${browser.code(6)}`;
  const input = el("input", { id, list: "known-labels", autocomplete: "off", maxlength: state.status.limits.label });
  const button = el("button.quiet", {}, "Teach this");
  const form = el("form.correct", { novalidate: true }, el("label", { for: id }, "It is …"), el("div.row.fill", {}, input, button));
  let lesson = null;
  input.addEventListener("input", () => (lesson = null));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    act(button, result, async () => {
      if (!input.value.trim()) return input.focus();
      lesson ??= plan([{ ...sample, label: toLabel(input.value) }], false);
      const { lessons } = lesson;
      await inTurn(() => teach(lesson, result)).catch((error) => {
        if (!(error instanceof Unreachable)) lesson = null;
        throw error;
      });
      const options = { top: 3, ...(state.status.rejects && { reject: REJECT }) };
      const [after] = await predict([sample], state.status.limits, options);
      showAnswer(answer, after, `Asked again after the lesson “${shown(lessons[0].samples[0].label)}”`);
      input.value = "";
      lesson = null;
    });
  });
  item.append(form, result);
  return item;
}

function showAnswer(place, prediction, note) {
  const { error, label, known, top } = prediction;
  if (error) return place.replaceChildren(el("p.error", {}, el("b", {}, "Error: "), shown(error)));
  const after = state.lessons.at(-1)?.number;
  const meta = `${note ?? "Asked"} at ${clock(Date.now())}${after && !note ? `, after lesson ${after}` : ""}.`;
  const sure = known === null || known === undefined ? "" : ` Of samples of known classes, ${percent(known)} look as strange as this one.`;
  const head = label === null ? el("h3.unknown", {}, "I don’t know this") : el("h3", {}, name(label));
  const nearest = label === null ? [el("p.hint", {}, "The nearest classes:")] : [];
  place.replaceChildren(head, ...nearest, bars(top), el("p.hint", {}, meta + sure));
}

// --- Memory ------------------------------------------------------------------------------------------------------------------

/** Render without losing the keyboard's place: the element of the same `data-key` gets the focus again. */
function replace(place, ...content) {
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  place.replaceChildren(...content);
  if (focused) [...place.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focused)?.focus();
}

/** A place for a question right below the row of a button. */
function below(button) {
  const row = button.closest("tr");
  if (!row) return button.closest("li").appendChild(el("div.below"));
  const cell = el("td", { colspan: 4 });
  row.after(el("tr.below", {}, cell));
  return cell;
}

async function confirmed(button, text, answers) {
  const place = below(button);
  const answer = await question(place, text, answers);
  place.closest(".below").remove();
  renderClasses(); // neither is rendered while something is asked there
  renderLessons();
  return answer === 0;
}

/** Change the model: ask first, then do it, then measure. `title` names the row of the matrix. */
function change(button, ask, path, body, { title, after }) {
  const output = $("memory-result");
  return act(button, output, async () => {
    if (ask && !(await confirmed(button, ...ask))) return;
    await inTurn(async () => {
      say(output, "Working…");
      $("memory-title").focus(); // the row may go; the result and the matrix are up there
      const answer = await post(path, body);
      await after?.();
      const notes = (answer.notes ?? []).map((note) => el("p.hint", {}, shown(note)));
      say(output, `${title}. The model knows ${count(answer.classes, "class")}.`, ...notes);
      await settle(title);
    });
  });
}

function forget(button, label) {
  const text = `Forget ${shown(label)}? The model loses this class, and this browser its thumbnails and check samples.`;
  const after = () => browser.remove("samples", state.samples.filter((sample) => sample.label === label));
  change(button, [text, ["Forget it", "Keep it"]], "/forget", { class: label }, { title: `Forgot ${shown(label)}`, after });
}

function undo(button, lesson) {
  const text = `Undo lesson ${lesson.number} (${lessonWhat(lesson)})? The model will be as if it had never been taught.`;
  const own = () => state.samples.filter((sample) => lesson.name && sample.lesson === lesson.name);
  const after = () => browser.remove("samples", own());
  const which = lesson.name ?? lesson.number; // numbers may have moved in another tab; names are unique
  change(button, [text, ["Undo it", "Keep it"]], "/undo", { lesson: which }, { title: `Undid lesson ${lesson.number}`, after });
}

/** Labels of this browser's samples and measurements follow a class that is renamed. */
async function relabel(old, label) {
  const own = state.samples.filter((sample) => sample.label === old);
  await browser.put("samples", own.map((sample) => ({ ...sample, label })));
  const rename = (one) => (one.label === old ? { ...one, label } : one);
  await browser.put("history", state.history.map((row) => ({ ...row, accuracy: row.accuracy.map(rename) })));
}

/** A form in place of a row of the table. */
function renameRow(row, label) {
  const input = el("input", { id: "rename-field", autocomplete: "off", maxlength: state.status.limits.label });
  input.value = String(label);
  const save = el("button.strong", { id: "rename-save" }, "Rename");
  const close = () => {
    form.closest("tr").replaceWith(row);
    row.querySelector("button").focus();
    renderClasses();
  };
  const cancel = el("button.quiet", { type: "button", click: close }, "Cancel");
  const caption = el("label", { for: "rename-field" }, "New name of ", name(label));
  const form = el("form", { novalidate: true }, caption, el("div.row.fill", {}, input, save, cancel));
  form.addEventListener("keydown", (event) => event.key === "Escape" && close());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const fresh = toLabel(input.value);
    if (fresh === "" || fresh === label) return close();
    const title = `Renamed ${shown(label)} to ${shown(fresh)}`;
    const after = () => {
      form.closest("tr").remove();
      return relabel(label, fresh);
    };
    await change(save, null, "/rename", { old: label, new: fresh }, { title, after });
  });
  row.replaceWith(el("tr", {}, el("td", { colspan: 4 }, form)));
  input.select();
}

/** A small button in a row; its whole name says which row. */
const rowButton = (word, what, id, click) =>
  el("button.link", { type: "button", "data-key": `${word} ${id}`, "aria-label": `${word} ${what}`, click }, word);

function renderClasses() {
  if ($("classes").querySelector("form, .below")) return; // someone is typing or deciding there
  if (!state.classes.length) return $("classes").replaceChildren(el("p.hint", {}, "None yet."));
  const pictures = Map.groupBy(live().filter((sample) => !sample.check && sample.thumb), (sample) => key(sample.label));
  const row = ({ label, samples, last }) => {
    const action = (word, work) => rowButton(word, shown(label), key(label), work);
    const thumbs = (pictures.get(key(label)) ?? []).slice(-3).map((sample) => thumb(sample.thumb));
    const tr = el("tr", {}, el("th", { scope: "row" }, name(label), thumbs.length > 0 && el("span.thumbs", {}, thumbs)),
      el("td.number", {}, samples.toLocaleString("en")), el("td", {}, day(last)),
      el("td.actions", {}, action("Rename", () => renameRow(tr, label)), " ", action("Forget", (event) => forget(event.target, label))));
    return tr;
  };
  const heads = ["Class", "Samples", "Last taught"].map((word) => el(word === "Samples" ? "th.number" : "th", { scope: "col" }, word));
  const head = el("tr", {}, heads, el("td", {}, el("span.sr", {}, "Actions")));
  const caption = el("caption.sr", {}, "Classes of the model");
  const table = el("table.classes", {}, caption, el("thead", {}, head), el("tbody", {}, state.classes.map(row)));
  replace($("classes"), el("div.scroll", { tabindex: 0, role: "region", "aria-label": "Classes of the model" }, table));
}

function renderLessons() {
  if ($("lessons").querySelector(".below")) return;
  if (!state.lessons.length) return $("lessons").replaceChildren(el("p.hint", {}, "None yet."));
  const item = (lesson) => {
    const verbs = { learned: `Learned ${noun(lesson.total)} of`, forgot: "Forgot", merged: `Merged ${noun(lesson.total)} of` };
    const text = `${verbs[lesson.action] ?? shown(lesson.action)} ${lessonLabels(lesson)}`;
    const when = el("span.hint", {}, `Lesson ${lesson.number}, ${day(lesson.date)}`);
    const button = rowButton("Undo", `lesson ${lesson.number}`, lessonKey(lesson), (event) => undo(event.target, lesson));
    return el("li", { value: lesson.number }, el("span", {}, el("b", {}, text), " ", when), lesson.kept && button);
  };
  const items = state.lessons.map(item).reverse();
  const box = el("div.scroll.tall", { tabindex: 0, role: "region", "aria-label": "Lessons, newest first" }, el("ol.timeline", {}, items));
  replace($("lessons"), box);
}

function renderMatrix() {
  const checks = liveChecks();
  const labels = labelsOf(checks);
  const rows = state.history.filter(({ accuracy }) => accuracy.some(({ label }) => labels.includes(label)));
  if (!rows.length) {
    const how = "Teach five or more samples of a class at once. Every fifth is kept back,";
    $("matrix-text").replaceChildren(`${how} and the model is checked on it after each lesson.`);
    return $("matrix").replaceChildren();
  }
  const find = (row, label) => row.accuracy.find((one) => one.label === label);
  const cell = (one) => one && { share: one.right / one.total, hint: `${one.right} of ${one.total} right` };
  const cells = rows.map((row) => ({ title: row.title, cells: labels.map((label) => cell(find(row, label)) ?? null) }));
  const now = labels.map((label) => find(rows.at(-1), label)).filter(Boolean);
  const [right, total] = ["right", "total"].map((what) => now.reduce((sum, one) => sum + one[what], 0));
  const losses = cells.at(-1).cells.map((last, i) => (last ? cells.find((row) => row.cells[i]).cells[i].share - last.share : 0));
  const most = Math.max(0, ...losses);
  const loss = most
    ? `The largest loss: ${shown(labels[losses.indexOf(most)])}, ${count(Math.round(most * 100), "point")} since it was taught.`
    : "No class has lost accuracy since it was taught.";
  $("matrix-text").replaceChildren(`The model recognises ${right} of ${noun(total)} kept back. ${loss}`);
  const title = "Accuracy per class, after each change";
  replace($("matrix"), matrix({ title, corner: "After", columns: labels, rows: cells, none: "not measured" }));
}

function renderSize() {
  const points = state.history;
  if (!points.length) return $("size").replaceChildren(el("p.hint", {}, "Bytes of the model appear here after the first lesson."));
  const sizes = points.map((point) => point.bytes);
  const [first, last] = [sizes[0], sizes.at(-1)];
  const same = sizes.every((size) => size === first);
  const text = same
    ? `${bytes(last)}${sizes.length > 1 ? `, the same after each of ${sizes.length} changes` : " after the first measurement"}.`
    : `${bytes(last)}, and ${bytes(first)} at first. Smallest ${bytes(Math.min(...sizes))}, largest ${bytes(Math.max(...sizes))}.`;
  const undo = state.status.undo_bytes ? ` Beside it, ${bytes(state.status.undo_bytes)} to undo the last lessons.` : "";
  $("size").replaceChildren(el("p.hint", {}, text + undo), sizeLine(points));
}

/** Let the server compare everything that the model stores with samples that only this browser has. */
async function audit() {
  const whole = live().filter(({ check, data }) => !check && data);
  const fits = whole.length ? requests(whole.slice(-20), state.status.limits).at(-1) : [];
  say($("audit-result"), `Comparing the model with ${noun(fits.length)} from this browser…`);
  const result = await postSamples("/audit", fits);
  $("samples-kept").replaceChildren(result.samples_kept.toLocaleString("en"));
  const words = new Map([[true, ["holds", "Holds"]], [false, ["broken", "Broken"]], [null, ["open", "Unknown"]]]);
  const line = (promise) => {
    const [kind, word] = words.get(promise.holds ?? null);
    return el("li", { class: kind }, el("b", {}, `${word}: `), shown(promise.name), el("span.hint", {}, shown(promise.reason)));
  };
  const all = result.promises.every(({ holds }) => holds) ? "All promises hold" : "No promise is broken";
  const against = `Compared with ${noun(result.compared)} from this browser, at ${clock(Date.now())}.`;
  const head = `${result.holds ? all : "Not all promises hold"}. ${against}`;
  say($("audit-result"), head, el("ul.promises", {}, result.promises.map(line)));
}

async function clearStorage() {
  const text = "Remove all thumbnails, check samples and measurements from this browser? The model stays as it is.";
  if ((await question($("storage-result"), text, ["Clear it", "Keep it"])) === 1) return;
  await inTurn(browser.clear);
  stored = true;
  await refresh();
  say($("storage-result"), "This browser’s storage is empty.");
}

// --- Examples and fine-tuning ------------------------------------------------------------------------------------------------

let examples = null;

/** Pairs of classes, each one lesson: `{id, title, kind, samples()}`. */
async function loadExamples() {
  const { photo = [], text = [] } = await get("/studio/examples");
  const pairs = (all) => Array.from({ length: Math.floor(all.length / 2) }, (_, i) => all.slice(2 * i, 2 * i + 2));
  const digits = pairs(photo).map((pair, i) => {
    const draw = ({ label, pixels }) => pixels.map((one, j) => browser.drawn(one, label, `${label}-${j + 1}.jpg`));
    const samples = () => Promise.all(pair.flatMap(draw));
    const preview = () => Promise.all(pair.map(({ label, pixels }) => browser.drawn(pixels[0], label, "")));
    return { id: `example-photo-${i + 1}`, kind: "photo", title: `digits ${list(pair.map(({ label }) => label))}`, samples, preview };
  });
  const intents = pairs(text).map((pair, i) => {
    const samples = () => pair.flatMap(({ label, sentences }) => browser.sentences(sentences.join("\n"), label));
    return { id: `example-text-${i + 1}`, kind: "text", title: list(pair.map(({ label }) => `“${label}”`)), samples };
  });
  examples = [...digits, ...intents];
  for (const example of examples) example.pictures = (await example.preview?.()) ?? [];
}

const isExample = (lesson, example) => lesson.name?.startsWith(`${shown(example.title)} · `);

const exampleButton = (id, properties, ...content) =>
  el("button.example", { type: "button", id, "data-key": id, ...properties }, ...content);

/** The strip is for a new model: empty, or with nothing but examples. */
async function renderWelcome() {
  const { noun: takes, kinds } = state.status;
  const hide = () => ($("welcome").hidden = true);
  if (takes === "row" || sessionStorage.getItem("cldnet-welcome") === "hidden") return hide();
  if (state.lessons.length && !state.lessons.some((lesson) => lesson.name?.includes(" · "))) return hide();
  if (!examples) await loadExamples();
  if (!state.lessons.every((lesson) => examples.some((example) => isExample(lesson, example)))) return hide();
  const offered = examples.filter(({ kind }) => (takes ? kind === takes : !kinds[kind]));
  const button = (example) => {
    const done = state.lessons.some((lesson) => isExample(lesson, example));
    const word = example.kind === "text" && !takes && example.id.endsWith("-1") ? "Teach two intents: " : "Teach ";
    const text = el("span", {}, done ? `✓ Taught ${shown(example.title)}` : word + shown(example.title));
    const click = (event) => runExample(event.currentTarget, example);
    const pictures = example.pictures.map((picture) => thumb(picture.thumb));
    return exampleButton(example.id, { "aria-disabled": done ? "true" : null, click }, ...pictures, text);
  };
  const checks = liveChecks();
  const text = el("span", {}, `Ask about a ${takes === "text" ? "sentence" : "picture"} it has not seen`);
  const another = exampleButton("example-ask", { click: (event) => askExample(event.currentTarget) }, text);
  const groups = [...Map.groupBy(offered, ({ kind }) => kind)].map(([kind, all]) =>
    el("div", { role: "group", "aria-label": kind === "text" ? "Sentences" : "Photos" }, all.map(button), checks.length > 0 && another));
  replace($("examples"), ...groups);
  $("welcome").hidden = !offered.length;
}

const runExample = (button, example) =>
  act(button, $("example-result"), async () => {
    example.plan ??= plan(await example.samples(), true, example.title);
    await inTurn(() => teach(example.plan, $("example-result"), $("example-progress"))).catch((error) => {
      if (!(error instanceof Unreachable)) example.plan = null;
      throw error;
    });
    example.plan = null;
  });

const askExample = (button) =>
  act(button, $("example-result"), async () => {
    const checks = liveChecks();
    await ask([checks[Math.floor(Math.random() * checks.length)]]);
    showPane("ask");
    $("ask-title").focus();
  });

/** Both methods side by side, filled in as the numbers arrive. */
async function compare() {
  const methods = new Map();
  say($("compare-status"), "Running…");
  $("compare-result").replaceChildren();
  let done = false;
  for await (const line of stream("/studio/compare")) {
    if (line.error) throw new Error(line.error);
    if (line.done) done = true;
    else {
      if (!methods.has(line.method)) methods.set(line.method, { title: line.title, tasks: line.tasks, rows: [] });
      methods.get(line.method).rows.push(line);
      renderCompare(methods);
      say($("compare-status"), `${shown(line.title)} has learned ${line.task} of ${line.tasks} tasks.`);
    }
  }
  if (!done) throw new Error("The comparison stopped before its end. Run it again.");
  say($("compare-status"), ...compared([...methods.values()]));
}

const taskName = ({ classes }) => list(classes, 9).replace(" and ", ", ");

function renderCompare(methods) {
  const all = [...methods.values()];
  const known = all.reduce((most, one) => (one.rows.length > most.length ? one.rows : most), []);
  const tasks = Array.from({ length: all[0].tasks }, (_, i) => (known[i] ? taskName(known[i]) : `task ${i + 1}`));
  const figure = ({ title, rows, tasks: number }) => {
    const cell = (share) => (share === undefined ? null : { share });
    const row = (_, i) => ({ title: tasks[i], cells: tasks.map((_, j) => cell(rows[i]?.accuracies[j])) });
    const body = Array.from({ length: number }, row);
    return el("figure", {}, matrix({ title: shown(title), corner: "After", columns: tasks, rows: body }),
      el("figcaption.hint", {}, `Accuracy on the test digits of each task. The model has ${bytes(rows.at(-1).bytes)}.`));
  };
  replace($("compare-result"), ...all.map(figure));
}

/** What happened, from the numbers received. */
function compared(methods) {
  const read = ({ title, rows }) => {
    const last = rows.at(-1).accuracies;
    const learned = rows.map((row, i) => row.accuracies[i]); // each task, just after it was learned
    const losses = learned.map((share, i) => share - last[i]);
    const worst = losses.indexOf(Math.max(...losses));
    const mean = last.reduce((a, b) => a + b, 0) / last.length;
    return { title: shown(title), mean, loss: losses[worst], task: taskName(rows[worst]), from: learned[worst], to: last[worst] };
  };
  const results = methods.map(read).sort((a, b) => b.mean - a.mean);
  const lost = (one) =>
    one.loss < 0.005
      ? "it lost nothing on any task"
      : `its largest loss is on ${one.task}, from ${percent(one.from)} to ${percent(one.to)}`;
  const sentences = results.map((one) => `${one.title} ends at ${percent(one.mean)} on average over all tasks; ${lost(one)}.`);
  const [best, other] = results;
  const gap = other && Math.round((best.mean - other.mean) * 100);
  const end = !other ? "" : gap > 0 ? ` That is ${count(gap, "point")} more for ${best.title}.` : " Both end alike.";
  return [sentences.join(" ") + end];
}

// --- The page ----------------------------------------------------------------------------------------------------------------

function render() {
  const { status } = state;
  const parts = [count(status.classes, "class"), count(status.lessons, "lesson"), ...(status.bytes ? [bytes(status.bytes)] : [])];
  $("summary").replaceChildren(el("b", {}, name(status.model)), ` ${parts.join(", ")}`);
  document.title = `${shown(status.model)} · CLDNet Studio`;
  const takes = (kind) => (status.noun ? status.noun === kind : !status.kinds[kind]);
  const visible = { photo: takes("photo"), text: takes("text"), both: takes("photo") && takes("text"), row: status.noun === "row" };
  for (const element of document.querySelectorAll("[data-for]")) element.hidden = !visible[element.dataset.for];
  const reasons = status.noun ? [] : Object.values(status.kinds).filter(Boolean).map(shown);
  $("teach-kinds").hidden = !reasons.length;
  $("teach-kinds").replaceChildren(reasons.join(" "));
  $("teach-form").hidden = visible.row;
  $("ask-empty").hidden = status.classes > 0 || visible.row;
  $("ask-inputs").hidden = !status.classes || visible.row;
  $("teach-label").maxLength = status.limits.label;
  $("known-labels").replaceChildren(...state.classes.map(({ label }) => el("option", { value: String(label) })));
  changedLabels();
  renderClasses();
  renderLessons();
  renderMatrix();
  renderSize();
  renderStorage();
  renderWelcome().catch(disconnected);
}

/** The text under the check box counts with what the model knows; a plan under way is kept. */
function changedLabels() {
  const { plan: current } = draft;
  if (!current) changed();
}

async function renderStorage() {
  const checks = liveChecks();
  const here = live().filter((sample) => !sample.check).length;
  const lost = (await browser.isVolatile()) ? " This browser keeps nothing once the tab is closed." : "";
  const taught = count(here, state.status.noun === "text" ? "taught sentence" : "thumbnail");
  const text = here + checks.length ? `${taught} and ${count(checks.length, "check sample")}` : "no samples";
  $("storage-text").replaceChildren(`This browser keeps ${text}.${lost}`);
}

function showPane(pane) {
  document.body.dataset.pane = pane;
  for (const tab of $("tabs").children) {
    if (tab.dataset.tab === pane) tab.setAttribute("aria-current", "true");
    else tab.removeAttribute("aria-current");
  }
}

function onSubmit(form, button, output, work) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    act(button, output, work);
  });
}

function wire() {
  dropZone($("teach"), $("teach-drop"), $("teach-files"), addFiles);
  $("teach-folder-button").addEventListener("click", () => $("teach-folder").click());
  $("teach-folder").addEventListener("change", () => {
    addFiles(chosen($("teach-folder")));
  });
  cameraButton($("teach-camera-button"), $("teach-camera"), "Take a photo", (shot) => {
    draft.photos.push(shot);
    say($("teach-result"), `${noun(draft.photos.length, "photo")} ready.`);
    changed();
  });
  $("teach-form").addEventListener("input", changed);
  onSubmit($("teach-form"), $("teach-button"), $("teach-result"), teachDraft);

  dropZone($("ask"), $("ask-drop"), $("ask-files"), askFiles);
  const askShot = (shot) => act($("ask-drop"), $("ask-status"), () => ask([shot]));
  cameraButton($("ask-camera-button"), $("ask-camera"), "Take a photo and ask", askShot);
  onSubmit($("ask-form"), $("ask-button"), $("ask-status"), async () => {
    const [sample] = browser.sentences($("ask-text").value.replaceAll("\n", " "));
    if (!sample) return $("ask-text").focus();
    await ask([sample]);
  });
  $("ask-text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    $("ask-form").requestSubmit();
  });

  const press = (id, output, work) => $(id).addEventListener("click", () => act($(id), $(output), work));
  press("audit-button", "audit-result", audit);
  press("download-button", "storage-result", () => download(state.status.model));
  press("clear-storage", "storage-result", clearStorage);
  press("compare-button", "compare-status", compare);
  press("welcome-hide", "example-result", async () => {
    sessionStorage.setItem("cldnet-welcome", "hidden");
    $("welcome").hidden = true;
    $("teach-title").focus();
  });
  for (const link of $("welcome").querySelectorAll("a")) link.addEventListener("click", () => showPane("memory"));
  for (const tab of $("tabs").children) tab.addEventListener("click", () => (showPane(tab.dataset.tab), scrollTo(0, 0)));

  onSubmit($("token-form"), $("token-button"), $("token-reason"), async () => {
    setToken($("token-field").value);
    $("token-field").value = "";
    $("token-panel").hidden = true; // so that the next reason is shown
    await poll();
  });
  addEventListener("hashchange", () => {
    if (!takeToken()) return;
    $("token-panel").hidden = true;
    poll();
  });
  for (const event of ["dragover", "drop"]) addEventListener(event, (drag) => drag.preventDefault()); // a missed drop would leave the page
  addEventListener("focus", poll);
  document.addEventListener("visibilitychange", poll);
  browser.onChange(() => {
    stored = true;
    poll();
  });
  setInterval(poll, POLL);
}

takeToken();
wire();
await poll();
if (state.status) {
  await prune();
  await inTurn(() => measure()).catch(disconnected);
}
