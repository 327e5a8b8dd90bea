import "./style.css";
import { load } from "./load.js";

const main = document.getElementById("gpuheap");
if (main) {
  load(document).then(
    (page) => {
      const heading = document.createElement("h1");
      heading.textContent = page.report.verdict.headline;
      main.replaceChildren(heading);
    },
    (error: unknown) => {
      const text = document.createElement("p");
      text.textContent = error instanceof Error ? error.message : String(error);
      main.replaceChildren(text);
    },
  );
}
