"""`muser model`: files of models."""

from cyclopts import App

from muser.cli import model_fetch, model_list, model_show, model_synth


def model_app() -> App:
    """The commands of `muser model`."""
    app = App(name="model", help="List, fetch, show and make model files.")
    app.command(model_list.list_models, name="list")
    app.command(model_fetch.fetch)
    app.command(model_show.show)
    app.command(model_synth.synth)
    return app
