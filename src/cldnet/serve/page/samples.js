// Samples in the browser: photos cut down before upload, folders, the camera, and what IndexedDB keeps (the server keeps none).

/** @typedef {import("./service.js").Sample} Sample */
/**
 * @typedef {Sample & {id: string, model: string, lesson: string, check: boolean, order: number}} Kept
 * A sample in IndexedDB: a check sample (never taught), or the thumbnail of a taught one. It counts once the model has its lesson.
 */

const SHORTER_SIDE = 448;
const THUMB = 96;
const PICTURE = /\.(jpe?g|png|gif|webp|avif|bmp|tiff?|heic|heif)$/i;

/** Random lower-case letters and digits. */
export function code(length) {
  return Array.from(crypto.getRandomValues(new Uint8Array(length)), (byte) => (byte % 36).toString(36)).join("");
}

function canvas(width, height) {
  const element = Object.assign(document.createElement("canvas"), { width, height });
  const context = element.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.fillStyle = "#fff"; // JPEG has no transparency
  context.fillRect(0, 0, width, height);
  return { element, context };
}

const jpeg = (element) => new Promise((resolve) => element.toBlob(resolve, "image/jpeg", 0.9));

/** A square thumbnail from the middle, as a data URL. */
function thumbnail(image, width, height) {
  const { element, context } = canvas(THUMB, THUMB);
  const side = Math.min(width, height);
  context.drawImage(image, (width - side) / 2, (height - side) / 2, side, side, 0, 0, THUMB, THUMB);
  return element.toDataURL("image/jpeg", 0.75);
}

/** Draw a picture at most `SHORTER_SIDE` on its shorter side. */
async function cut(image, width, height) {
  const scale = Math.min(1, SHORTER_SIDE / Math.min(width, height));
  const { element, context } = canvas(Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale)));
  context.drawImage(image, 0, 0, element.width, element.height);
  return { data: await jpeg(element), thumb: thumbnail(element, element.width, element.height) };
}

/** A file as a sample. What the browser cannot decode goes as it is: the server says why it cannot be learned. */
export async function photo(file, label = null) {
  const plain = { kind: "photo", name: file.name, data: file, thumb: null, label };
  try {
    const bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
    const small = await cut(bitmap, bitmap.width, bitmap.height);
    bitmap.close();
    return small.data ? { ...plain, ...small } : plain;
  } catch {
    return plain;
  }
}

/** An example of 8 × 8 numbers from 0 to 16 as a photo: white on black, enlarged smoothly. */
export async function drawn(pixels, label, name) {
  const side = Math.sqrt(pixels.length);
  const small = canvas(side, side);
  const image = small.context.createImageData(side, side);
  pixels.forEach((value, i) => image.data.set([value, value, value].map((v) => (v / 16) * 255).concat(255), i * 4));
  small.context.putImageData(image, 0, 0);
  const { element, context } = canvas(224, 224);
  context.drawImage(small.element, 0, 0, 224, 224);
  return { kind: "photo", name, label, ...(await cut(element, 224, 224)) };
}

/** Sentences, one per line. @returns {Sample[]} */
export function sentences(text, label = null) {
  const lines = text.split("\n").map((line) => line.trim());
  return lines.filter(Boolean).map((data) => ({ kind: "text", name: "", data, thumb: null, label }));
}

/** Files of a drop with their paths, folders read to the bottom. Call it inside the event: the transfer is empty after it. */
export async function dropped(transfer) {
  const entries = Array.from(transfer.items, (item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return Array.from(transfer.files, (file) => ({ file, path: file.name }));
  return (await Promise.all(entries.map((entry) => walk(entry, entry.name)))).flat();
}

async function walk(entry, path) {
  if (entry.isFile) {
    const file = await new Promise((resolve) => entry.file(resolve, () => resolve(null)));
    return file ? [{ file, path }] : [];
  }
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    // A reader hands out about a hundred entries at a time.
    const some = await new Promise((resolve) => reader.readEntries(resolve, () => resolve([])));
    if (!some.length) return found;
    for (const one of some) found.push(...(await walk(one, `${path}/${one.name}`)));
  }
}

/**
 * Labels from folders: a sub-folder is a label; so is a folder beside others. One flat folder only suggests its name.
 * @param {{file: File, path: string}[]} files
 * @returns {{files: {file: File, label: string|null}[], suggestion: string|null, left: number}}
 */
export function byFolder(files) {
  const compare = new Intl.Collator("en", { numeric: true }).compare;
  const order = (a, b) => (a.includes("/") && b.includes("/") ? compare(a, b) : 0); // a folder comes in any order
  const wanted = files.filter(({ file, path }) => !path.includes("/") || isPicture(file, path));
  wanted.sort((a, b) => order(a.path, b.path));
  const parts = wanted.map(({ path }) => path.split("/"));
  const tops = new Set(parts.filter((part) => part.length > 1).map((part) => part[0]));
  const label = (part) => (part.length > 2 ? part[1] : part.length === 2 && tops.size > 1 ? part[0] : null);
  const labelled = wanted.map(({ file }, i) => ({ file, label: label(parts[i]) }));
  const flat = tops.size === 1 && labelled.every((one) => one.label === null);
  return { files: labelled, suggestion: flat ? [...tops][0] : null, left: files.length - wanted.length };
}

/** Folders hold other things as well (notes, .DS_Store); a file that was chosen by itself is always sent. */
function isPicture(file, path) {
  const hidden = path.split("/").some((part) => part.startsWith("."));
  return !hidden && (file.type.startsWith("image/") || PICTURE.test(file.name));
}

/** Show the camera in `video`; returns how to take a shot and how to stop. */
export async function camera(video) {
  const media = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  video.srcObject = media;
  await video.play();
  const shoot = async () => {
    const shot = await cut(video, video.videoWidth, video.videoHeight);
    return { kind: "photo", name: `shot-${code(4)}.jpg`, label: null, ...shot };
  };
  return { shoot, stop: () => media.getTracks().forEach((track) => track.stop()) };
}

// --- IndexedDB ---------------------------------------------------------------------------------------------------------------

const memory = { samples: new Map(), history: new Map() }; // where there is no IndexedDB (some private windows)
const channel = new BroadcastChannel("cldnet-studio");
let opening;

function database() {
  opening ??= new Promise((resolve) => {
    try {
      const request = indexedDB.open("cldnet-studio", 1);
      request.onupgradeneeded = () => {
        for (const name of ["samples", "history"]) {
          request.result.createObjectStore(name, { keyPath: "id" }).createIndex("model", "model");
        }
      };
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
  return opening;
}

/** Run `work` on a store in one transaction, and wait until it is on disk. */
async function transact(name, mode, work) {
  const db = await database();
  return new Promise((resolve, reject) => {
    const transaction = db.transaction(name, mode);
    const request = work(transaction.objectStore(name));
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onabort = () => reject(new Error("This browser's storage is full: free some space, or clear it below."));
  });
}

async function read(name, model) {
  if (!(await database())) return [...memory[name].values()].filter((record) => record.model === model);
  return transact(name, "readonly", (store) => store.index("model").getAll(model));
}

/** What this browser keeps for a model, in the order it came. @returns {Promise<{samples: Kept[], history: object[]}>} */
export async function kept(model) {
  const [samples, history] = await Promise.all([read("samples", model), read("history", model)]);
  return { samples: samples.sort((a, b) => a.order - b.order), history: history.sort((a, b) => a.turn - b.turn) };
}

/** Is storage lost when the tab closes? */
export const isVolatile = async () => (await database()) === null;

async function change(name, work) {
  if (await database()) await transact(name, "readwrite", work);
  else work({ put: (r) => memory[name].set(r.id, r), delete: (id) => memory[name].delete(id), clear: () => memory[name].clear() });
  channel.postMessage(name); // other tabs read it again
}

export const put = (name, records) => change(name, (store) => void records.forEach((record) => store.put(record)));
export const remove = (name, records) => change(name, (store) => void records.forEach(({ id }) => store.delete(id)));
export const onChange = (listener) => (channel.onmessage = listener);

export async function clear() {
  for (const name of ["samples", "history"]) await change(name, (store) => void store.clear());
}
