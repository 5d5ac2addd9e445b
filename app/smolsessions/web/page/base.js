/** Path below which a proxy serves the service: "" or "/prefix". */
export const BASE = new URL("..", import.meta.url).pathname.slice(0, -1);
