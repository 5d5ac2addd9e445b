// Files of a message: what the service takes, and their form in a request.

const IMAGES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const KINDS = { // browsers do not know some, and systems name others differently
  txt: "text/plain", csv: "text/csv", md: "text/markdown", tsv: "text/tab-separated-values", json: "application/json", pdf: "application/pdf",
  wav: "audio/wav", mp3: "audio/mpeg", m4a: "audio/mp4", ogg: "audio/ogg", flac: "audio/flac", weba: "audio/webm", webm: "audio/webm",
};
export const REFUSAL = "Only PNG, JPEG, GIF and WebP images, texts (txt, csv, md, tsv, json), PDFs and audio can be attached.";

export function isImage(file) {
  return IMAGES.has(file.type);
}

export function isTaken(file) {
  return isImage(file) || Boolean(kindOf(file));
}

/** The members of a request that hold these files. The model sees images; tools and code get the others. */
export async function members(chosen) {
  const images = await Promise.all(chosen.filter(isImage).map(encoded));
  const others = chosen.filter((file) => !isImage(file));
  const files = await Promise.all(others.map(async (file) => ({ name: file.name, media_type: kindOf(file) ?? file.type, data: base64(await encoded(file)) })));
  return { ...(images.length && { images }), ...(files.length && { files }) };
}

function kindOf(file) {
  return KINDS[file.name.split(".").pop().toLowerCase()];
}

function base64(url) {
  return url.includes(",") ? url.slice(url.indexOf(",") + 1) : ""; // that of an empty file may end before its comma
}

/** Return a file as a data: URL, which holds its type and its base64. */
function encoded(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}
