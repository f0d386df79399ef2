"""The page of `bespoke app`: what `playground` draws, in Gradio on this machine. Nothing is fetched from elsewhere."""

import html
import importlib
import os
import traceback
from collections.abc import Iterator
from typing import Any

from bespoke_solvers.dedicated import NAMES
from bespoke_solvers.playground import Choice, Drawing, Panel, Playground, StoppedError
from bespoke_solvers.report import data_uri

TITLE = "Bespoke solvers"
NO_SOLVER, DRAWN = ("none", ""), ("by seed", -1)  # what is read, and what it stands for
BUTTON = "#00697a"
AT_ONCE = {"queue": False, "show_progress": "hidden", "api_visibility": "private", "trigger_mode": "multiple"}
IN_TURN = AT_ONCE | {"queue": True, "concurrency_limit": 1, "concurrency_id": "model"}  # what uses the model
CSS = """
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 12rem), 1fr)); gap: 1rem; }
.panels figure { margin: 0; min-width: 0; }
.panels figcaption { min-height: 6.2em; margin-bottom: 0.5rem; line-height: 1.5; font-variant-numeric: tabular-nums; }
.panels strong { display: block; font-size: 1.1em; }
.panels img, .panels .waiting { display: block; width: 100%; }
.panels img.plot { border-radius: 6px; }
.panels img.pixels { image-rendering: pixelated; }
.panels .waiting { display: grid; place-items: center; aspect-ratio: 1; border: 1px dashed currentColor; }
.summary { min-height: 3em; line-height: 1.5; font-size: 1.15em; font-weight: 600; margin: 0 0 0.75rem; }
.remark, .error { margin: 0 0 0.75rem; padding: 0.5rem 0.75rem; border-left: 4px solid #b45309; }
.error { border-color: #b91c1c; }
"""


def gradio() -> Any:
    """Gradio, which is to send nothing home and to keep nothing in the browser."""
    os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_RUN_HISTORY": "False"}
    try:
        return importlib.import_module("gradio")
    except ModuleNotFoundError as error:
        if error.name != "gradio":
            raise
        raise ValueError("the app needs Gradio, which is not installed: pip install 'bespoke-solvers[app]'") from error


def serve(playground: Playground, host: str, port: int | None) -> None:
    """Serve the page until interrupted. port: by default a free one."""
    gr = gradio()
    blocks = page(playground)
    _, address, _ = blocks.queue(default_concurrency_limit=1).launch(
        server_name=host,
        server_port=port,
        share=False,
        ssr_mode=False,
        footer_links=[],
        prevent_thread_lock=True,
        quiet=True,
        css=CSS,
        theme=_theme(gr),
    )
    print(f"{TITLE}: {address} (Ctrl-C ends it)", flush=True)
    blocks.block_thread()


def _theme(gr: Any) -> Any:
    """With fonts of the system, and a button whose text can be read."""
    theme = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    fills = {f"button_primary_background_fill{more}": BUTTON for more in ("", "_hover", "_dark", "_hover_dark")}
    return theme.set(**fills)


def page(playground: Playground) -> Any:
    """The page as Gradio's blocks."""
    gr, start = gradio(), playground.start(playground.models[0])

    def classes(model: str) -> Any:
        names = playground.model(model).labels
        choices = [DRAWN, *((name, number) for number, name in enumerate(names))]
        return gr.Dropdown(choices, value=DRAWN[1], label="Class", visible=bool(names), min_width=110)

    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as blocks:
        gr.Markdown(
            f"# {TITLE}\nThe same noise through the same model: by a usual solver, by yours, and solved exactly."
        )
        with gr.Row():
            with gr.Column(scale=1, min_width=300), gr.Group():
                model = gr.Dropdown(playground.models, value=start.model, label="Model")
                solver = gr.Dropdown([*playground.solvers, NO_SOLVER], value=start.solver or "", label="Solver")
                with gr.Row():
                    nfe = gr.Dropdown(playground.nfe(start.solver), value=start.nfe, label="NFE", min_width=110)
                    baseline = gr.Dropdown(
                        list(NAMES), value=start.baseline, label="Baseline", allow_custom_value=True, min_width=110
                    )
                with gr.Row():
                    seed = gr.Number(start.seed, precision=0, label="Seed", min_width=110)
                    samples = gr.Number(start.samples, precision=0, label="Samples", min_width=110)
                with gr.Row():
                    label = classes(start.model)
                    guidance = gr.Textbox(
                        _shown(start.guidance), label="Guidance", placeholder="its own", max_lines=1, min_width=110
                    )
                button = gr.Button("Draw", variant="primary")
            with gr.Column(scale=3, min_width=300):
                shown = gr.HTML()

        def draw(*values: Any) -> Iterator[str]:
            try:
                for drawing in playground.draw(_choice(*values)):
                    yield as_html(drawing)
            except StoppedError:
                yield as_html(Drawing([], [], ["given up for another drawing"]))
            except Exception as error:
                yield _failure(error)

        def change_model(name: str) -> tuple[Any, Any, str]:
            try:
                return classes(name), playground.samples(name), ""
            except Exception as error:
                return gr.skip(), gr.skip(), _failure(error)

        def change_solver(name: str) -> tuple[Any, Any]:
            possible = playground.nfe(name or None)
            return gr.Dropdown(possible, value=possible[0]), _shown(playground.scale(name or None))

        chosen = [model, solver, nfe, baseline, seed, samples, label, guidance]
        model.change(change_model, model, [label, samples, shown], **IN_TURN)
        solver.change(change_solver, solver, [nfe, guidance], **AT_ONCE)
        asked = [button.click, seed.submit, samples.submit, guidance.submit]
        gr.on(asked, playground.stop, None, None, **AT_ONCE).then(draw, chosen, shown, **IN_TURN)
        blocks.load(draw, chosen, shown, **IN_TURN)
    return blocks


def as_html(drawing: Drawing) -> str:
    """The panels side by side, below what there is to say."""
    said = [f'<p class="remark" role="status">{html.escape(_sentence(text))}</p>' for text in drawing.remarks]
    if summary := drawing.summary or "Solving\N{HORIZONTAL ELLIPSIS}" * bool(drawing.waiting):
        said.insert(0, f'<p class="summary" role="status">{html.escape(summary)}</p>')
    figures = [*map(_figure, drawing.panels), *map(_placeholder, drawing.waiting)]
    return (
        f'{"".join(said)}<div class="panels" aria-busy="{str(bool(drawing.waiting)).lower()}">{"".join(figures)}</div>'
    )


def _figure(panel: Panel) -> str:
    name, lines = html.escape(panel.name), [panel.cost, panel.closeness, html.escape(panel.note)]
    shown = '<div class="waiting">neither pictures nor points of the plane</div>'
    if panel.picture is not None:
        kind = "plot" if panel.is_plot else "pixels"
        shown = f'<img class="{kind}" src="{data_uri(panel.picture)}" alt="Samples by {name}, {panel.cost}">'
    caption = f"<strong>{name}</strong>{'<br>'.join(filter(None, lines))}"
    return f"<figure><figcaption>{caption}</figcaption>{shown}</figure>"


def _placeholder(name: str) -> str:
    caption = f"<figcaption><strong>{html.escape(name)}</strong></figcaption>"
    return f'<figure>{caption}<div class="waiting">to come</div></figure>'


def _failure(error: Exception) -> str:
    """An error in words; one that is not ours also in the terminal."""
    if not isinstance(error, ValueError | OSError):
        traceback.print_exception(error)
    words = " ".join(str(error).split()) or type(error).__name__
    return f'<p class="error" role="alert">{html.escape(_sentence(words))}</p>'


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "." * (not text.endswith("."))


def _shown(guidance: float | None) -> str:
    return "" if guidance is None else f"{guidance:g}"


def _choice(
    model: str, solver: str, nfe: int, baseline: str, seed: Any, samples: Any, label: int, guidance: str
) -> Choice:
    if seed is None or samples is None:
        raise ValueError("seed and samples need a whole number each")
    try:
        scale = float(guidance) if guidance.strip() else None
    except ValueError:
        raise ValueError(f"guidance is {guidance!r}; expected a number, or nothing for the model's own") from None
    return Choice(model, solver or None, nfe, baseline, seed, samples, None if label < 0 else label, scale)
