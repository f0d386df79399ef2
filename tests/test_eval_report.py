"""What the page of a comparison is made of, without a browser."""

import base64
import dataclasses
import io

import torch
from PIL import Image

from bespoke_solvers import Model, comparison, eval_report, fit, gallery, schedules, toy
from bespoke_solvers.bank import Bank
from bespoke_solvers.comparison import Comparison
from bespoke_solvers.evaluation import HeldOut
from bespoke_solvers.generic import baseline
from viewers import shown


def decaying(shape, **options):
    return Model(velocity=lambda t, x: -x, shape=shape, schedule=schedules.CondOT(), **options)


def size(sprite):
    with Image.open(io.BytesIO(base64.b64decode(sprite.partition(",")[2]))) as image:
        return image.size


def test_latents_are_decoded_for_the_viewer():
    found = shown(decaying((4, 4, 4), decode=lambda x: x[:, :3].repeat_interleave(2, -1).tanh()))
    assert size(found.exact) == (4 * 8, 4 * 4)
    assert (found.count, found.columns) == (16, 4)
    assert len(found.cells) == 1


def test_what_a_viewer_shows_is_read_again():
    x = torch.rand(5, 3, 4, 6) * 2 - 1
    layout = gallery.Layout(5, 2, (4, 6))
    assert (gallery.read(gallery.drawn(decaying((3, 4, 6)), x, layout), layout) - x).abs().max() <= 1 / 255 + 1e-6
    points = torch.tensor([[0.5, -0.25], [torch.inf, 0]])
    found = gallery.read(gallery.drawn(decaying((2,)), points, gallery.Layout(2, 1, None)), gallery.Layout(2, 1, None))
    assert torch.equal(found[0], points[0])
    assert found[1].isnan().all()


def test_samples_that_are_no_pictures_have_no_viewer():
    assert "4 x 4 x 4 are neither pictures nor points" in shown(decaying((4, 4, 4))).html()


def test_large_pictures_are_fewer_and_smaller(monkeypatch):
    monkeypatch.setattr(gallery, "PIXELS", 40_000)
    tables = [baseline("euler", n) for n in range(1, 4)]
    fewer, smaller = (shown(decaying((3, side, side)), tables=tables) for side in (32, 64))
    assert (fewer.count, size(fewer.exact)) == (9, (3 * 32, 3 * 32))
    assert smaller.count == 4
    assert size(smaller.exact) == size(smaller.cells[2].samples) == (2 * 50, 2 * 50)
    assert "64 pixels high, are shown at 50 x 50" in smaller.html()


def test_a_base_method_that_goes_astray_leaves_pictures_and_a_headline(tmp_path):
    """Exact samples stay below 301, those of the midpoint rule on the way do not."""
    edm = toy.load("toy:digits-edm")
    model = dataclasses.replace(edm, velocity=lambda t, x: torch.where(x.abs() > 600, torch.nan, edm.velocity(t, x)))
    bank = Bank(model, batch_size=16)
    solver = fit(model, nfe=4, bank=bank, effort="low", paths=16, validation_paths=16, progress=False)
    tables, _ = comparison.methods([solver], ["midpoint"], [4], model)
    result = comparison.compare(bank, tables, 0, 16)
    assert "went astray" in comparison.as_text(result)
    files = comparison.write(result, bank, [solver], tables, tmp_path)
    assert {"paths.png", "samples.png"} <= {file.name for file in files}
    assert "nothing to compare: the samples went astray" in comparison.headline(result, solver)


def test_samples_astray_are_shown_and_told(tmp_path):
    """A method whose samples are not finite has no figures; the page still opens."""
    wild = Model(
        velocity=lambda t, x: x * torch.where(t > 0.6, torch.nan, 1.0), shape=(1, 4, 4), schedule=schedules.CondOT()
    )
    noise = HeldOut([wild.noise(range(4))], torch.zeros(4, 1, 4, 4), 10.0, 0.0)
    rows = [{"method": "euler", "nfe": 4, "rmse": None, "psnr": None}]
    result = Comparison(rows, 4, 0, 10.0, 0.0)
    samples = {("euler", 4): noise.sample(baseline("euler", 4), wild)}
    found = gallery.viewer(wild, noise, samples, lambda *_: "", "euler")
    assert size(found.cells[0].samples) == (8, 8)
    assert "went astray" in eval_report.headline(result, ["euler"], 1e-5).html()
    assert ">astray<" in eval_report.table(result, []).html()
    assert eval_report.curves(result, []).charts[0].series == {}


def test_the_headline_says_how_many_times_fewer_at_which_loss():
    rows = [
        {"method": "ns-bespoke", "nfe": 10, "rmse": 0.00303, "psnr": 50.0, "fid": 3.1},
        {"method": "ns-bespoke", "nfe": 5, "rmse": 0.0123, "psnr": 40.0, "fid": 4.0},
        {"method": "rk2-bespoke", "nfe": 10, "rmse": 0.0213, "psnr": 39.0, "fid": 4.0},
        {"method": "unipc", "nfe": 10, "rmse": 0.0401, "psnr": 37.1, "fid": 5.0},
        {"method": "unipc", "nfe": 20, "rmse": 0.0001, "psnr": 90.0, "fid": 3.0},
    ]
    found = Comparison(rows, 64, 0, 127.0, 1e-5, {"fid": 3.0}, 500)
    text = eval_report.headline(found, ["ns-bespoke", "rk2-bespoke"], 1e-5).html()
    assert '<p class="figure">12.7 times fewer evaluations at RMSE 0.00303</p>' in text
    assert "takes 10 evaluations of the model a sample, the exact ones, to a tolerance of 1e-05, took 127" in text
    assert "RMSE 0.00303, PSNR 50.0 dB" in text
    assert "The best other method with 10 evaluations, unipc: RMSE 0.0401" in text
    assert "The cheapest other method that is as close is unipc with 20 evaluations." in text
    alone = eval_report.headline(dataclasses.replace(found, rows=rows[:-1]), ["ns-bespoke", "rk2-bespoke"], 1e-5).html()
    assert "With up to 10 evaluations, no other method comes as close." in alone
    rows[3] |= {"rmse": 0.0032, "rmse_se": 0.0001}
    near = eval_report.headline(dataclasses.replace(found, rows=rows[:-1]), ["ns-bespoke", "rk2-bespoke"], 1e-5).html()
    assert "as close is unipc with 10 evaluations, within the noise of so many samples." in near
    rows[3]["rmse"] = 0.003
    no = eval_report.headline(dataclasses.replace(found, rows=rows[:-1]), ["ns-bespoke", "rk2-bespoke"], 1e-5).html()
    assert '<p class="figure">ns-bespoke with 10 evaluations is no closer than unipc</p>' in no
    few = eval_report.headline(dataclasses.replace(found, samples=15), ["ns-bespoke", "rk2-bespoke"], 1e-5).html()
    assert "one of so few samples can decide which solver is closer; take 16 or more" in few
    assert "unipc" not in few
    assert "one of so few" not in text
    assert "Its FID is 3.10; that of the exact samples is 3.00." in text
    assert "With 5 evaluations, 25.4 times fewer: RMSE 0.0123" in text
    assert "rk2-bespoke with 10 evaluations, 12.7 times fewer: RMSE 0.0213" in text
