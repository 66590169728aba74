// The start of the page: tabs, the key, the served models.

/// True once somebody has chosen a view.
let hasChosen = false;

const TABS = Array.from(document.querySelectorAll("[role=tab]"));

function select(tab) {
  for (const other of TABS) {
    const isSelected = other === tab;
    other.setAttribute("aria-selected", isSelected);
    other.tabIndex = isSelected ? 0 : -1;
    byId(other.getAttribute("aria-controls")).hidden = !isSelected;
  }
  if (tab.id === "tab-live") follow();
  else stopFollowing();
  if (tab.id === "tab-cost") drawCost();
}

function startTabs() {
  const choose = (tab) => {
    hasChosen = true;
    select(tab);
  };
  for (const [at, tab] of TABS.entries()) {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: -1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = TABS.at(to % TABS.length);
      choose(next);
      next.focus();
    });
  }
}

const LOADING_MS = 1000;

/// Asks what is served, again while the server loads.
async function load() {
  try {
    const { json } = await ask("v1/models");
    models = json.data.filter(({ id, root }) => id === root);
    byId("key-form").hidden = true;
    byId("served").textContent = models.map(({ id, kind }) => `${id} (${kind})`).join(", ");
    const decides = offerDecide();
    const compares = offerCompare();
    if (!hasChosen && !decides && compares) select(byId("tab-compare"));
  } catch (error) {
    if (!byId("key-form").hidden) return;
    byId("served").textContent = error.message;
    setTimeout(load, LOADING_MS);
  }
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = byId("key").value.trim();
  byId("key").value = "";
  byId("key-form").hidden = true;
  load();
});

startTabs();
startDecide();
startCost();
startLive();
startCompare();
load();
