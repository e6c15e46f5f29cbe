// Drives the page of export/web in Chromium for tests/kit/test_web.py: a command a line in, an answer a line out, in JSON.
// node web_driver.mjs <folder of the page> <chromium>

import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [folder, executablePath] = process.argv.slice(2);
const { chromium } = createRequire(`${folder}/package.json`)("playwright-core");

const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];
const DEVICES = {
  desktop: { viewport: { width: 1100, height: 800 } },
  phone: { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true, deviceScaleFactor: 2 },
  small: { viewport: { width: 320, height: 568 }, isMobile: true, hasTouch: true },
};

// Headless, and with a user data folder of its own that is removed at the end.
const browser = await chromium.launch({ executablePath, headless: true, args: FLAGS });
let context, page, input, problems;

const commands = {
  async open({ url, device = "desktop", scheme = "light" }) {
    await context?.close();
    context = await browser.newContext({ ...DEVICES[device], colorScheme: scheme });
    page = await context.newPage();
    input = await context.newCDPSession(page);
    problems = [];
    page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("request", (request) => {
      const { origin, protocol } = new URL(request.url());
      if (origin !== new URL(url).origin && !["data:", "blob:"].includes(protocol)) problems.push(request.url());
    });
    await page.goto(url);
    await page.evaluate(async () => (await import("./app.js")).ready);
  },

  /** A stroke through points in parts of the pad's sides, by real input events of the browser. */
  async stroke({ points, pointer = "mouse" }) {
    const { x, y, width, height } = await page.locator("#pad").boundingBox();
    const track = points.flatMap((to, i) => {
      const from = points[Math.max(i - 1, 0)];
      return [0.25, 0.5, 0.75, 1].map((part) => ({
        x: x + width * (from[0] + part * (to[0] - from[0])),
        y: y + height * (from[1] + part * (to[1] - from[1])),
      }));
    });
    const [first, last] = [track[0], track.at(-1)];
    if (pointer === "touch") {
      const touch = (type, touchPoints) => input.send("Input.dispatchTouchEvent", { type, touchPoints });
      await touch("touchStart", [first]);
      for (const point of track) await touch("touchMove", [point]);
      await touch("touchEnd", []);
    } else {
      const mouse = (type, point, pressed) =>
        input.send("Input.dispatchMouseEvent", {
          type,
          ...point,
          pointerType: pointer,
          button: type === "mouseMoved" ? "none" : "left",
          buttons: pressed ? 1 : 0,
          clickCount: 1,
        });
      await mouse("mousePressed", first, true);
      for (const point of track) await mouse("mouseMoved", point, true);
      await mouse("mouseReleased", last, false);
    }
  },

  async press({ keys }) {
    for (const key of keys) await page.keyboard.press(key);
  },

  async click({ selector }) {
    await page.locator(selector).click();
  },

  async choose({ selector, file }) {
    await page.locator(selector).setInputFiles(file);
  },

  /** Drops a file on the page as a file manager would. */
  async drop({ file }) {
    const data = { items: [], files: [file], dragOperationsMask: 1 };
    for (const type of ["dragEnter", "dragOver", "drop"]) {
      await input.send("Input.dispatchDragEvent", { type, x: 200, y: 300, data });
    }
  },

  /** Waits until an expression holds in the page. (The page's own policy forbids Playwright's waitForFunction.) */
  async wait({ until }) {
    const deadline = Date.now() + 20000;
    while (!(await page.evaluate(until))) {
      if (Date.now() > deadline) throw new Error(`still not: ${until}`);
      await page.waitForTimeout(20);
    }
  },

  /** What the body of an async function returns in the page, for an argument. */
  async call({ body, argument = null }) {
    return page.evaluate(`(async (argument) => { ${body} })(${JSON.stringify(argument)})`);
  },

  async screenshot({ path }) {
    await page.screenshot({ path });
  },

  async problems() {
    return problems;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...options } = JSON.parse(line);
  const answer = await commands[command](options).then(
    (value) => ({ value: value ?? null }),
    (error) => ({ error: String(error) }),
  );
  console.log(JSON.stringify(answer));
}
await browser.close();
