// The runbook of a cause, filled from a diagnosis.

import { text } from "../api.js";
import { h } from "../dom.js";
import { rendered } from "../markdown.js";

export async function page({ params, query, signal }) {
  const wanted = new URLSearchParams();
  for (const name of ["diagnosis", "platform"]) if (query.get(name)) wanted.set(name, query.get(name));
  const back = query.get("diagnosis");
  const page_ = await text(`/v1/runbooks/${params.cause}?${wanted}`, "text/markdown", signal);
  const platform = h("select", { onchange: () => {
    wanted.set("platform", platform.value);
    location.hash = `#/runbooks/${params.cause}?${wanted}`;
  } }, [["", "as the service is set"], ["kubernetes", "Kubernetes"], ["slurm", "Slurm"], ["host", "bare hosts"]].map(
    ([value, name]) => h("option", { value, selected: value === (query.get("platform") ?? "") }, name)));
  return h("div", {},
    rendered(page_),
    h("label", {}, "Commands for ", platform),
    back ? h("p", {}, h("a", { href: `#/diagnoses/${back}` }, "Back to the diagnosis")) : null,
  );
}
