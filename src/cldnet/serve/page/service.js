// The HTTP service: token, requests, errors as sentences, requests below the server's limits, lessons that are safe to send again.

/** @typedef {string|number|boolean} Label */
/** @typedef {{kind: "photo"|"text", name: string, data: Blob|string, thumb: string|null, label: Label|null}} Sample */
/** @typedef {{name: string, samples: Sample[], done: boolean}} Lesson A lesson to send; the name makes it safe to send it twice. */

const TOKEN = "cldnet-token";
const PAUSES = [1, 2, 4, 8, 12]; // seconds between attempts: a restarted server needs a while to load its model
const UNREACHABLE = "The server cannot be reached. Start “cldnet studio” again in the terminal.";

/** The server refused: `message` is its sentence. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The server did not answer. The request may or may not have had its effect. */
export class Unreachable extends Error {
  constructor() {
    super(UNREACHABLE);
  }
}

/** Keep the token of the address (`#token=…`) for this tab, and take it out of the address bar. */
export function takeToken() {
  const found = /[#&]token=([^&]*)/.exec(location.hash);
  if (!found) return false;
  setToken(found[1]);
  history.replaceState(null, "", location.pathname + location.search);
  return true;
}

/** Accepts a token, or the whole address that the terminal shows. */
export function setToken(text) {
  const token = text.trim().replace(/^.*[#&]token=/, "");
  let decoded = token;
  try {
    decoded = decodeURIComponent(token);
  } catch {
    // not encoded: take it as it is
  }
  sessionStorage.setItem(TOKEN, decoded);
}

export const hasToken = () => Boolean(sessionStorage.getItem(TOKEN));

/** Send one request. Throws `Refused` with the server's sentence, or `Unreachable`. */
async function send(path, { json, form } = {}) {
  const headers = {};
  // A header takes visible ASCII only; any other token is wrong anyway, and the server says so.
  const token = (sessionStorage.getItem(TOKEN) ?? "").replace(/[^\x21-\x7e]/g, "");
  if (token) headers.Authorization = `Bearer ${token}`;
  if (json !== undefined) headers["Content-Type"] = "application/json";
  const options = { headers, cache: "no-store" };
  if (json !== undefined || form) Object.assign(options, { method: "POST", body: form ?? JSON.stringify(json) });
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Unreachable();
  }
  if (!response.ok) throw new Refused(response.status, await sentence(response));
  return response;
}

async function sentence(response) {
  try {
    return String((await response.json()).error);
  } catch {
    return `The server answered with status ${response.status}, and gave no reason.`;
  }
}

/** The answer as JSON. An answer that breaks off counts as none. */
async function call(path, body) {
  const response = await send(path, body);
  try {
    return await response.json();
  } catch {
    throw new Unreachable();
  }
}

export const get = (path) => call(path);
export const post = (path, json) => call(path, { json });

/** Save the model's file. A link cannot send the token, so the file goes through memory. */
export async function download(name) {
  const url = URL.createObjectURL(await (await send("/model")).blob());
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** Post and yield the lines of a stream of JSON as they arrive. */
export async function* stream(path) {
  const response = await send(path, { json: {} });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch(() => {
      throw new Unreachable();
    });
    const lines = (rest + (value ?? "")).split("\n");
    rest = done ? "" : lines.pop();
    for (const line of lines) if (line.trim()) yield JSON.parse(line);
    if (done) return;
  }
}

/** Bytes that a sample adds to a request, at most: Base64 or the multipart header, and a label. */
const weight = ({ kind, data, name }) =>
  (kind === "photo" ? Math.ceil(data.size / 3) * 4 : 3 * data.length) + 3 * name.length + 1000;

/** Cut samples into groups that each fit into one request. @param {Sample[]} samples @returns {Sample[][]} */
export function requests(samples, limits) {
  const groups = [];
  let room = 0;
  for (const sample of samples) {
    if (!groups.length || groups.at(-1).length >= limits.samples || weight(sample) > room) {
      groups.push([]);
      room = limits.body * 0.98;
    }
    groups.at(-1).push(sample);
    room -= weight(sample);
  }
  return groups;
}

function multipart(samples, fields) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, String(value));
  for (const { data, name } of samples) form.append("files", data, name);
  return { form };
}

/** Post samples to `/predict` or `/audit`. Photos go as files: that is a third smaller than Base64. */
export async function postSamples(path, samples, options = {}) {
  if (samples[0]?.kind === "photo") return call(path, multipart(samples, options));
  return call(path, { json: { ...options, inputs: samples.map(({ data }) => data) } });
}

/** Predict samples, in as many requests as the limits ask for. @param {Sample[]} samples */
export async function predict(samples, limits, options = {}) {
  const predictions = [];
  for (const group of requests(samples, limits)) {
    predictions.push(...(await postSamples("/predict", group, options)).predictions);
  }
  return predictions;
}

/** A lesson's body, with one label for all samples where all agree. */
function lessonBody({ name, samples }, again) {
  const options = { name, once: true, ...(again && { allow_duplicates: true }) };
  const label = samples[0].label;
  const one = samples.every((sample) => sample.label === label);
  const labels = one ? { label } : { labels: samples.map((sample) => sample.label) };
  if (samples[0].kind !== "photo") return { json: { ...labels, ...options, inputs: samples.map(({ data }) => data) } };
  return multipart(samples, { ...(one ? labels : { labels: JSON.stringify(labels.labels) }), ...options });
}

/**
 * Teach a lesson. If the server does not answer, send it again: the server learns a lesson of this name only once.
 * @param {Lesson} lesson @param {boolean} again teach data that was taught before
 * @param {(attempt: number, of: number) => void} onWait told before each pause
 */
export async function learn(lesson, again, onWait) {
  for (let attempt = 0; ; attempt++) {
    try {
      return await call("/learn", lessonBody(lesson, again));
    } catch (error) {
      const gone = error instanceof Unreachable || [502, 503, 504].includes(error.status);
      if (!gone || attempt >= PAUSES.length) throw error;
      onWait(attempt + 1, PAUSES.length);
      await new Promise((resolve) => setTimeout(resolve, PAUSES[attempt] * 1000));
    }
  }
}
