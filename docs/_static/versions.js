// Offers the other versions of the documentation. `make docs` writes their list beside the folders of the versions.
window.addEventListener("DOMContentLoaded", () => {
  const site = new URL(document.documentElement.dataset.content_root + "../", document.baseURI);
  const here = new URL(document.documentElement.dataset.content_root, document.baseURI).href;
  const list = document.createElement("script");
  list.src = new URL("versions.js", site).href;
  list.onload = () => {
    const box = document.querySelector(".versions");
    const select = box.querySelector("select");
    for (const version of window.pilotageVersions) {
      const page = new URL(version + "/", site).href;
      select.add(new Option(version, page, page === here, page === here));
    }
    select.onchange = () => window.location.assign(select.value + "index.html");
    box.hidden = false;
  };
  document.head.append(list);
});
