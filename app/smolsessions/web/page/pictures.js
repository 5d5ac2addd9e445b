// Images and files of a conversation: fetched with the key, and shown or downloaded as blob: addresses. A click enlarges an image.

import { byId, icon, make } from "./dom.js";
import { isImage } from "./files.js";

export class Pictures {
  #api;
  #connection;
  #found = new Map(); // address on the service → promise of a blob: address
  #stop = new AbortController();

  constructor(api, connection) {
    this.#api = api;
    this.#connection = connection;
    byId("viewer-close").addEventListener("click", () => byId("viewer").close());
    byId("viewer").addEventListener("click", (event) => {
      if (event.target === byId("viewer")) byId("viewer").close();
    });
  }

  /** A button that shows the image once it is loaded. */
  of({ url, width, height }, name) {
    const place = this.#button(name, { width, height });
    this.#fetched(url).then(
      (address) => (place.querySelector("img").src = address),
      (problem) => {
        if (problem.name !== "AbortError") place.replaceWith(make("p", { className: "note" }, `${name}: ${problem.message}`));
      },
    );
    return place;
  }

  /** A button that downloads a file. A sound also has a player. */
  file({ url, name, media_type: type = "" }) {
    const button = this.#download(name, () => this.#fetched(url));
    if (!type.startsWith("audio/")) return button;
    const player = make("audio", { controls: true, preload: "none", "aria-label": name });
    this.#fetched(url).then((address) => (player.src = address), () => player.remove());
    return make("span", { className: "sound" }, player, button);
  }

  /** The same for an image or a file of this browser. */
  ofFile(file) {
    if (!isImage(file)) return this.#download(file.name, () => this.#keep(file.name, file));
    const place = this.#button(file.name || "Attached image", {});
    place.querySelector("img").src = this.#keep(file.name + file.size + file.lastModified, file);
    return place;
  }

  /** Return the images and files of a turn's message, as files of this browser. */
  filesOf({ images, files }) {
    const named = [...images.map(({ url }, index) => ({ url, name: `image-${index + 1}` })), ...files];
    return Promise.all(named.map(async ({ url, name, media_type: type }) => {
      const blob = await this.#api.blob(url, { signal: this.#stop.signal });
      return new File([blob], name, { type: type ?? blob.type });
    }));
  }

  /** Release all images and files, because another conversation opens. */
  forget() {
    this.#stop.abort();
    this.#stop = new AbortController();
    for (const address of this.#found.values()) Promise.resolve(address).then(URL.revokeObjectURL, () => {});
    this.#found.clear();
  }

  #button(name, size) {
    const image = make("img", { alt: name, ...size });
    const button = make("button", { type: "button", className: "picture", "aria-label": `${name}, show it large` }, image);
    button.addEventListener("click", () => {
      byId("viewer-image").src = image.src;
      byId("viewer-image").alt = name;
      byId("viewer").showModal();
    });
    return button;
  }

  #download(name, addressOf) {
    const button = make("button", { type: "button", className: "file", "aria-label": `Download ${name}` }, icon("file"), name);
    button.addEventListener("click", async () => {
      try {
        make("a", { href: await addressOf(), download: name }).click();
      } catch (problem) {
        if (problem.name !== "AbortError") button.replaceWith(make("p", { className: "note" }, `${name}: ${problem.message}`));
      }
    });
    return button;
  }

  #fetched(url) {
    if (!this.#found.has(url)) {
      const { signal } = this.#stop;
      const load = () => this.#api.blob(url, { signal });
      this.#found.set(url, this.#connection.insist(load, signal).then((blob) => URL.createObjectURL(blob)));
    }
    return this.#found.get(url);
  }

  #keep(name, file) {
    const address = URL.createObjectURL(file);
    this.#found.set(`${name}#${this.#found.size}`, address);
    return address;
  }
}
