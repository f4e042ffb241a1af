"""The screen of `top`: tabs with tables, which a thread refreshes; the thread of the screen never calls the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static, TabbedContent, TabPane

from pilotage import clock
from pilotage.errors import PilotageError
from pilotage.programs import ProgramExit
from pilotage_client.api import Client
from pilotage_client.cli.show.columns import View
from pilotage_client.cli.show.tables import Table, shortened
from pilotage_client.cli.top.panes import PANES, Pane

_CELL_PADDING = 1
_ARROWS = {False: "▲", True: "▼"}


class DetailsScreen(ModalScreen[None]):
    """A text over the screen; Escape, Enter or q closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "Close"),
    ]

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def compose(self) -> ComposeResult:
        """Return the widgets of the screen."""
        with VerticalScroll(id="details") as box:
            box.border_title = self._title
            box.border_subtitle = "Esc closes"
            yield Static("…", id="text", markup=False)

    def on_mount(self) -> None:
        """Let the keys scroll the text."""
        self.query_one("#details").focus()

    def show(self, text: str) -> None:
        """Show this text."""
        self.query_one("#text", Static).update(text)


class PaneTable(DataTable[Text]):
    """The table of a pane: what was read last, filtered and sorted."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Details")]

    def __init__(self, pane: Pane) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True, cell_padding=_CELL_PADDING, id=pane.title.lower())
        self.pane = pane
        self.view = View(columns=pane.columns, sort=pane.sort, descending=pane.descending)
        self.pattern = ""
        self._items: Sequence[Any] = ()
        self._shown: list[Any] = []

    @property
    def chosen(self) -> Any:
        """The item under the cursor; None = there is none."""
        return self._shown[self.cursor_row] if 0 <= self.cursor_row < len(self._shown) else None

    def put(self, items: Sequence[Any]) -> None:
        """Show these items."""
        self._items = items
        self.draw()

    def sort_next(self) -> None:
        """Sort by the column after the present one; after the last one, in the order of the server."""
        names = [column.name for column in self.pane.listing.chosen(self.view)]
        place = names.index(self.view.sort) + 1 if self.view.sort in names else 0
        self.view = View(columns=self.view.columns, sort=names[place] if place < len(names) else "")
        self.draw()

    def reverse(self) -> None:
        """Sort in the other order."""
        self.view = View(columns=self.view.columns, sort=self.view.sort, descending=not self.view.descending)
        self.draw()

    def draw(self) -> None:
        """Fill the table anew; the cursor stays at its item, as far as that is still there."""
        listing, key = self.pane.listing, self._key(self.cursor_row)
        ordered = list(listing.ordered(self._items, self.view))
        table = listing.table(ordered, View(columns=self.view.columns))
        kept = [place for place, row in enumerate(table.rows) if self._matches(row)]
        table = Table(table.columns, [table.rows[place] for place in kept])
        self._shown = [ordered[place] for place in kept]
        self.clear(columns=True)
        names = [column.name for column in listing.chosen(self.view)]
        fitted = table.fit(self.app.size.width - 2 * _CELL_PADDING)
        for index, width in fitted:
            column = table.columns[index]
            arrow = _ARROWS[self.view.descending] if names[index] == self.view.sort else ""
            heading = Text(column.heading + arrow, justify="right" if column.right else "left")
            self.add_column(heading, width=max(width, len(column.heading + arrow)))
        for row in table.rows:
            cells = []
            for index, width in fitted:
                column = table.columns[index]
                style = column.style(row[index]) if column.style else ""
                cells.append(Text(shortened(row[index], width), style, justify="right" if column.right else "left"))
            self.add_row(*cells)
        keys = [row[0] for row in table.rows]
        if key in keys:
            self.move_cursor(row=keys.index(key))

    def _key(self, row: int) -> str:
        return self.get_row_at(row)[0].plain if 0 <= row < self.row_count else ""

    def _matches(self, row: Sequence[str]) -> bool:
        return not self.pattern or any(self.pattern in cell.casefold() for cell in row)


class TopApp(App[None]):
    """The screen."""

    TITLE = "pilotage top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #status { height: 1; padding: 0 1; background: $panel; }
    #filter { display: none; height: 3; }
    #filter.shown { display: block; }
    TabbedContent { height: 1fr; }
    TabPane { padding: 0; }
    PaneTable { height: 1fr; }
    DetailsScreen { align: center middle; }
    #details { width: 96%; height: 88%; border: round $primary; background: $surface; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "interrupt", show=False),
        Binding("s", "sort", "Sort"),
        Binding("S", "reverse", "Reverse"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("escape", "unfilter", show=False),
        Binding("r", "refresh", "Refresh"),
        *(Binding(str(number), f"pane({number - 1})", show=False) for number in range(1, len(PANES) + 1)),
    ]

    def __init__(self, client: Client, interval_s: float) -> None:
        super().__init__()
        self._client = client
        self._interval_s = interval_s
        self._who = ""

    def compose(self) -> ComposeResult:
        """Return the widgets of the screen."""
        yield Static(id="status", markup=False)
        with TabbedContent():
            for number, pane in enumerate(PANES, 1):
                with TabPane(f"{number} {pane.title}", id=f"pane-{pane.title.lower()}"):
                    yield PaneTable(pane)
        yield Input(placeholder="part of a text; Enter keeps the filter, Esc removes it", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        """Read at once, and then at each interval."""
        self.set_interval(self._interval_s, self.action_refresh)
        self.shown.focus()

    def on_resize(self) -> None:
        """Choose the columns that fit into the new width."""
        self.shown.draw()

    @property
    def shown(self) -> PaneTable:
        """The table of the chosen tab."""
        tabs = self.query_one(TabbedContent)
        return self.query_one(f"#{tabs.active}", TabPane).query_one(PaneTable)

    def on_tabbed_content_tab_activated(self) -> None:
        """Read what the new tab shows."""
        self.shown.focus()
        self.action_refresh()

    def action_interrupt(self) -> None:
        """End as every command that Ctrl-C ends."""
        self.exit(return_code=ProgramExit.INTERRUPTED)

    def action_pane(self, number: int) -> None:
        """Choose a tab."""
        self.query_one(TabbedContent).active = f"pane-{PANES[number].title.lower()}"

    def action_refresh(self) -> None:
        """Read the chosen tab again."""
        self.read(self.shown)

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.shown.sort_next()

    def action_reverse(self) -> None:
        """Sort in the other order."""
        self.shown.reverse()

    def action_filter(self) -> None:
        """Ask for a part of a text."""
        box = self.query_one("#filter", Input)
        box.add_class("shown")
        box.value = self.shown.pattern
        box.focus()

    def action_unfilter(self) -> None:
        """Show all rows again."""
        self.query_one("#filter", Input).value = ""
        self.on_input_submitted()
        self._filter("")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the text is typed."""
        self._filter(event.value)

    def on_input_submitted(self) -> None:
        """Return to the table."""
        self.query_one("#filter", Input).remove_class("shown")
        self.shown.focus()

    def _filter(self, pattern: str) -> None:
        self.shown.pattern = pattern.strip().casefold()
        self.shown.draw()

    def on_data_table_row_selected(self) -> None:
        """Show details of the row under the cursor."""
        table = self.shown
        if table.chosen is not None:
            screen = DetailsScreen(table.pane.title)
            self.push_screen(screen)
            self.explain(screen, table.pane, table.chosen)

    @work(thread=True, exclusive=True, group="read")
    def read(self, table: PaneTable) -> None:
        """Read the values of a table, off the thread of the screen."""
        try:
            self._who = self._who or self._client.who_am_i().owner
            items = list(table.pane.read(self._client))
        except PilotageError as error:
            self.call_from_thread(self._note, str(error))
            return
        self.call_from_thread(self._put, table, items)

    @work(thread=True, exclusive=True, group="explain")
    def explain(self, screen: DetailsScreen, pane: Pane, item: Any) -> None:
        """Read the details of a value, off the thread of the screen."""
        try:
            text = pane.details(self._client, item)
        except PilotageError as error:
            text = str(error)
        self.call_from_thread(screen.show, text)

    def _put(self, table: PaneTable, items: Sequence[Any]) -> None:
        table.put(items)
        self._note(f"{len(items)} {table.pane.title.lower()}" + (f", filter {table.pattern}" if table.pattern else ""))

    def _note(self, text: str) -> None:
        time = f"{clock.now().astimezone():%H:%M:%S}"
        where = f"{self._who}@{self._client.server}" if self._who else self._client.server
        self.query_one("#status", Static).update(f"pilotage top  {where}  {time}  {text}")
