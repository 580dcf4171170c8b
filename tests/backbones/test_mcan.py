"""MCAN: sizes, attention, padding and sites; that it learns; that every kind of method wraps it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gflowout as gfo
from gflowout.backbones import MCAN, ConvGrid, ImageMCAN, PatchGrid, region_padding
from gflowout.backbones.attention import (
    AttentionReduction,
    MultiHeadAttention,
    attention_weights,
    feed_forward,
)

BATCH, REGIONS, WORDS, FEATURES, VOCABULARY, ANSWERS = 3, 5, 4, 6, 11, 7


def little(**options: Any) -> MCAN:
    sizes = {
        "layers": 2,
        "width": 8,
        "heads": 2,
        "hidden": 12,
        "embedding_size": 10,
        "reduction_hidden": 9,
        "reduced": 14,
    }
    return MCAN(VOCABULARY, ANSWERS, FEATURES, **{**sizes, **options})


def inputs(batch: int = BATCH) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(batch, REGIONS, FEATURES, generator=generator)
    tokens = torch.randint(1, VOCABULARY, (batch, WORDS), generator=generator)
    features[0, 3:] = 0
    tokens[0, 2:] = 0
    return features, tokens


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def no_padding(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bool)


# Sizes


def published_parameters(vocabulary: int, layers: int, width: int, out: int) -> int:
    """Counted by hand from the tables of the published configuration."""

    def linear(before: int, after: int) -> int:
        return (before + 1) * after

    norm = 2 * width
    attention = 4 * linear(width, width)
    forward = linear(width, 4 * width) + linear(4 * width, width)
    self_attention = attention + forward + 2 * norm
    guided_attention = 2 * attention + forward + 3 * norm
    flatten = linear(width, 512) + linear(512, 1) + linear(width, out)
    lstm = 4 * (300 * width + width * width + 2 * width)
    return (
        300 * vocabulary
        + lstm
        + linear(2048, width)
        + layers * (self_attention + guided_attention)
        + 2 * flatten
        + 2 * out
        + linear(out, 3129)
    )


def test_small_has_the_parameters_of_the_published_network() -> None:
    with torch.device("meta"):
        small = MCAN.small(vocabulary=20_000)
        large = MCAN(20_000, 3129, layers=6, width=1024, hidden=4096, reduced=2048)
    assert count(small) == published_parameters(20_000, 6, 512, 1024) == 57_640_891
    assert count(large) == published_parameters(20_000, 6, 1024, 2048)
    assert count(small.encoder) == 6 * 3_152_384
    assert count(small.decoder) == 6 * 4_204_032
    assert small.encoder[0].attention.heads == 8


def test_presets_pass_on_what_they_are_given() -> None:
    table = torch.randn(VOCABULARY, 20)
    for preset in (MCAN.small, MCAN.tiny):
        with torch.device("cpu"):
            net = preset(VOCABULARY, ANSWERS, FEATURES, dropout=0.1, embeddings=table)
        assert torch.equal(net.embedding.weight, table)
        assert net.lstm.input_size == 20
        assert net.output.out_features == net.answers == ANSWERS
        assert net.image.in_features == net.feature_size == FEATURES
        assert all(isinstance(layer.attention.dropout, nn.Dropout) for layer in net.encoder)
    net.embedding.weight.data.zero_()
    assert table.abs().sum() > 0


def test_shapes_of_every_stage() -> None:
    net, shapes = little(), {}

    def note(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            shapes[name] = tuple((output[0] if isinstance(output, tuple) else output).shape)

        return hook

    for name, module in net.named_modules():
        module.register_forward_hook(note(name))
    net(*inputs())
    words, regions = (BATCH, WORDS, 8), (BATCH, REGIONS, 8)
    expected = {
        "embedding": (BATCH, WORDS, 10),
        "lstm": words,
        "image": regions,
        "encoder.0": words,
        "encoder.1": words,
        "decoder.0": regions,
        "decoder.1": regions,
        "encoder.0.feed_forward.expand": (BATCH, WORDS, 12),
        "reduce_words.score": (BATCH, WORDS, 1),
        "reduce_regions.score": (BATCH, REGIONS, 1),
        "reduce_words": (BATCH, 14),
        "reduce_regions": (BATCH, 14),
        "output": (BATCH, ANSWERS),
    }
    assert {name: shapes[name] for name in expected} == expected


# Attention


@pytest.mark.parametrize("padded", [0, 2])
def test_attention_is_that_of_pytorch(padded: int) -> None:
    ours, theirs = MultiHeadAttention(8, 2), nn.MultiheadAttention(8, 2, batch_first=True)
    parts = (ours.query, ours.key, ours.value)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.weight.copy_(ours.merge.weight)
        theirs.out_proj.bias.copy_(ours.merge.bias)
    x, source, padding = torch.randn(3, 4, 8), torch.randn(3, 4, 8), no_padding(3, 4)
    padding[1, 4 - padded :] = True
    expected = theirs(x, source, source, key_padding_mask=padding)[0]
    assert torch.allclose(ours(x, source, padding), expected, atol=1e-6)


def test_attention_of_one_head_is_the_fused_one() -> None:
    ours, x = MultiHeadAttention(8, 1), torch.randn(3, 5, 8)
    seen = torch.rand(3, 1, 5) < 0.6
    seen[..., 0] = True
    fused = F.scaled_dot_product_attention(ours.query(x), ours.key(x), ours.value(x), seen)
    assert torch.allclose(ours(x, x, ~seen[:, 0]), ours.merge(fused), atol=1e-6)


def test_nothing_to_look_at_gives_the_bias() -> None:
    attention, reduce = MultiHeadAttention(8, 2), AttentionReduction(8, 4, 6)
    x, padding = torch.randn(2, 3, 8), no_padding(2, 3)
    padding[0] = True
    assert torch.equal(attention(x, x, padding)[0], attention.merge.bias.expand(3, 8))
    assert torch.equal(reduce(x, padding)[0], reduce.merge.bias)
    assert not torch.allclose(reduce(x, padding)[1], reduce.merge.bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_of_padding_are_zero_in_every_precision(dtype: torch.dtype) -> None:
    scores = torch.tensor([[-6e4, 6e4, 5.0], [1.0, 2.0, 3.0]], dtype=dtype)
    padding = torch.tensor([[False, True, True], [True, True, True]])
    weights = attention_weights(scores, padding)
    assert weights.tolist() == [[1, 0, 0], [0, 0, 0]]


def test_reduction_is_the_formula() -> None:
    reduce, x = AttentionReduction(8, 4, 6), torch.randn(2, 5, 8)
    scores = reduce.score.contract(torch.relu(reduce.score.expand(x)))[..., 0].exp()
    mean = torch.einsum("bt,btw->bw", scores / scores.sum(1, keepdim=True), x)
    assert torch.allclose(reduce(x, no_padding(2, 5)), reduce.merge(mean), atol=1e-6)


# The network as a whole


def written_out(net: MCAN, features: Tensor, tokens: Tensor) -> Tensor:
    """MCAN for one example without padding, layer by layer, with attention of PyTorch."""

    def attend(attention: MultiHeadAttention, x: Tensor, source: Tensor) -> Tensor:
        split = [
            linear(sequence).reshape(1, len(sequence), attention.heads, -1).transpose(1, 2)
            for linear, sequence in zip(
                (attention.query, attention.key, attention.value), (x, source, source), strict=True
            )
        ]
        heads = F.scaled_dot_product_attention(*split)
        return attention.merge(heads.transpose(1, 2).reshape(len(x), -1))

    def mlp(parts: nn.Sequential, x: Tensor) -> Tensor:
        return parts.contract(F.relu(parts.expand(x)))

    words = net.lstm(net.embedding(tokens))[0]
    regions = net.image(features)
    for layer in net.encoder:
        words = layer.norm1(words + attend(layer.attention, words, words))
        words = layer.norm2(words + mlp(layer.feed_forward, words))
    for layer in net.decoder:
        regions = layer.norm1(regions + attend(layer.attention, regions, regions))
        regions = layer.norm2(regions + attend(layer.guided, regions, words))
        regions = layer.norm3(regions + mlp(layer.feed_forward, regions))
    fused = torch.zeros(net.norm.normalized_shape)
    for reduce, sequence in ((net.reduce_words, words), (net.reduce_regions, regions)):
        weights = mlp(reduce.score, sequence).softmax(0)
        fused = fused + reduce.merge((weights * sequence).sum(0))
    return net.output(net.norm(fused))


def test_network_is_the_formula_on_the_parts_that_are_no_padding() -> None:
    net, (features, tokens) = little(), inputs()
    logits = net(features, tokens)
    for row, (image, question) in enumerate(zip(features, tokens, strict=True)):
        real = image.abs().sum(1) > 0
        expected = written_out(net, image[real], question[question != 0])
        assert torch.allclose(logits[row], expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["derived", "given"])
def test_padding_does_not_change_the_answer(kind: str) -> None:
    net = little().double()
    features, tokens = inputs()
    features = features.double()
    before = net(features, tokens)
    rows, words = features.new_zeros(BATCH, 3, FEATURES), tokens.new_zeros(BATCH, 5)
    longer, asked = torch.cat([features, rows], 1), torch.cat([tokens, words], 1)
    given = {}
    if kind == "given":  # then what is there does not matter
        given["region_padding"], given["token_padding"] = region_padding(longer), asked == 0
        longer = longer.masked_fill(given["region_padding"][..., None], 9.0)
        asked = asked.masked_fill(given["token_padding"], 2)
    after = net(longer, asked, **given)
    assert torch.allclose(after, before, atol=1e-10)


def test_all_padding_is_no_nan_and_sees_nothing() -> None:
    net, (features, tokens) = little(), inputs()
    features[1], tokens[2] = 0, 0
    logits = net(features, tokens)
    logits.sum().backward()
    assert torch.isfinite(logits).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in net.parameters())
    longer = net(torch.cat([features, torch.zeros_like(features)], 1), tokens)
    assert torch.allclose(longer, logits, atol=1e-6)
    other_words = net(features, tokens.where(tokens == 0, 3))
    assert torch.allclose(other_words[2], logits[2], atol=1e-6)
    assert not torch.allclose(other_words[1], logits[1], atol=1e-3)


def test_gradients_reach_every_parameter() -> None:
    net = little()
    net(*inputs()).square().sum().backward()
    idle = [name for name, parameter in net.named_parameters() if not parameter.grad.abs().sum()]
    # Adding one number to all scores of a softmax changes nothing.
    keys = [name for name, _ in net.named_parameters() if name.endswith("key.bias")]
    scores = ["reduce_words.score.contract.bias", "reduce_regions.score.contract.bias"]
    assert set(idle) <= {*keys, *scores}


# Sites


def test_small_has_thirty_sites() -> None:
    with torch.device("meta"):
        sites = MCAN.small(vocabulary=100).sites
    assert len(sites) == 30
    assert sites[:2] == ("encoder.0.attention", "encoder.0.feed_forward")
    assert sites[12:15] == ("decoder.0.attention", "decoder.0.guided", "decoder.0.feed_forward")
    assert sites[-1] == "decoder.5.feed_forward"


def test_sites_run_once_in_order_and_give_tokens_by_width() -> None:
    net, seen = little(layers=3), []
    for name in net.sites:
        net.get_submodule(name).register_forward_hook(
            lambda module, args, output, name=name: seen.append((name, tuple(output.shape)))
        )
    net(*inputs())
    lengths = {"encoder": WORDS, "decoder": REGIONS}
    assert seen == [(name, (BATCH, lengths[name.split(".")[0]], 8)) for name in net.sites]


def test_sites_are_all_that_a_layer_adds() -> None:
    """With its sites at zero, a layer only normalises, whatever the other sequence is."""
    net = little()
    for name in net.sites:
        net.get_submodule(name).register_forward_hook(lambda m, args, output: 0 * output)
    x, guide = torch.randn(2, 5, 8), torch.randn(2, 4, 8)
    normal = F.layer_norm(x, (8,))
    encoded = net.encoder[0](x, no_padding(2, 5))
    decoded = net.decoder[0](x, guide, no_padding(2, 5), no_padding(2, 4))
    assert torch.allclose(encoded, normal, atol=1e-4)
    assert torch.allclose(decoded, normal, atol=1e-4)


def test_ordinary_dropout_is_beside_the_sites() -> None:
    assert not [module for module in little().modules() if isinstance(module, nn.Dropout)]
    net = little(dropout=0.3)
    found = [name for name, module in net.named_modules() if isinstance(module, nn.Dropout)]
    assert len(found) == 2 * (2 + 3) + 2
    assert not set(found) & set(net.sites)
    x = inputs()
    assert not torch.equal(net(*x), net(*x))
    net.eval()
    assert torch.equal(net(*x), net(*x))


# Learning


def shapes_and_colours(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Four shapes in any order, each of one of four colours: which colour is that shape?"""
    colours = torch.randint(4, (size, 4), generator=generator)
    shapes = torch.rand(size, 4, generator=generator).argsort(1)
    features = torch.cat([torch.eye(4)[shapes], torch.eye(4)[colours]], -1)
    asked = torch.randint(4, (size,), generator=generator)
    tokens = torch.stack([torch.ones_like(asked), 2 + asked, torch.zeros_like(asked)], 1)
    return features, tokens, colours[shapes == asked[:, None]]


def test_learns_what_needs_image_and_question() -> None:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    sizes = {"layers": 1, "width": 64, "heads": 4, "hidden": 64, "embedding_size": 16}
    net = MCAN(6, 4, 8, **sizes, reduction_hidden=32, reduced=64)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(120):
        features, tokens, colour = shapes_and_colours(64, generator)
        optimizer.zero_grad()
        F.cross_entropy(net(features, tokens), colour).backward()
        optimizer.step()
    features, tokens, colour = shapes_and_colours(500, generator)

    def accuracy(features: Tensor, tokens: Tensor) -> float:
        return (net(features, tokens).argmax(-1) == colour).float().mean().item()

    assert accuracy(features, tokens) > 0.95
    assert accuracy(features, tokens.roll(1, 0)) < 0.6
    assert accuracy(features.roll(1, 0), tokens) < 0.4


# Images


def test_conv_grid_cells_are_where_they_are_in_the_image() -> None:
    torch.manual_seed(0)
    grid, blank = ConvGrid(feature_size=5, in_channels=1, widths=(4, 6)), torch.zeros(1, 1, 16, 24)
    assert grid(blank).shape == (1, 4 * 6, 5)
    for stage in grid.stages:
        stage.norm = nn.Identity()  # which spreads a change over the whole image
    for pixel, cell in {(12, 0): (3, 0), (0, 20): (0, 5), (8, 8): (2, 2)}.items():
        image = blank.clone()
        image[0, 0, *pixel] = 3
        changed = (grid(image) != grid(blank)).any(-1).view(4, 6)
        assert changed.nonzero().tolist() == [list(cell)]


def test_patch_grid_is_a_linear_map_of_patches() -> None:
    grid, images = PatchGrid((4, 6), patch=2, feature_size=5), torch.randn(2, 3, 4, 6)
    patches = images.unfold(2, 2, 2).unfold(3, 2, 2)  # [batch, channels, 2, 3, 2, 2]
    flat = patches.permute(0, 2, 3, 1, 4, 5).reshape(2, 6, 12)
    expected = F.linear(flat, grid.project.weight.flatten(1), grid.project.bias) + grid.position
    assert torch.allclose(grid(images), expected, atol=1e-6)
    assert not torch.allclose(
        grid(torch.ones(1, 3, 4, 6))[0, 0], grid(torch.ones(1, 3, 4, 6))[0, 1]
    )


@pytest.mark.parametrize("encoder", [ConvGrid(FEATURES), PatchGrid(16, 8, FEATURES)])
def test_images_in_front(encoder: nn.Module) -> None:
    net = ImageMCAN(encoder, little())
    images, tokens = torch.randn(BATCH, 3, 16, 16), inputs()[1]
    features = encoder(images)
    assert not region_padding(encoder(torch.zeros_like(images))).any()
    assert torch.equal(net(images, tokens), net.mcan(features, tokens))
    assert torch.equal(net(features, tokens), net(images, tokens))
    assert [net.get_submodule(site) for site in net.sites] == [
        net.mcan.get_submodule(site) for site in net.mcan.sites
    ]
    blank = torch.zeros_like(features)  # grid features are never padding
    assert not torch.equal(net(blank, tokens), net.mcan(blank, tokens))
    net(images, tokens).square().sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def bars(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """A bar somewhere in the image: which of three colours has it, or does it lie or stand?"""
    colour, lies, question = (
        torch.randint(options, (size,), generator=generator) for options in (3, 2, 2)
    )
    images = 0.1 * torch.rand(size, 3, 16, 16, generator=generator)
    for image, channel, flat in zip(images, colour.tolist(), lies.tolist(), strict=True):
        row, column = torch.randint(11, (2,), generator=generator).tolist()
        height, width = (2, 5) if flat else (5, 2)
        image[channel, row : row + height, column : column + width] = 1
    return images, 1 + question.unsqueeze(1), torch.where(question == 0, colour, 3 + lies)


def test_learns_from_images() -> None:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    sizes = {"layers": 1, "width": 32, "heads": 4, "hidden": 64, "embedding_size": 8}
    net = ImageMCAN(
        ConvGrid(16, widths=(16, 32)), MCAN(3, 5, 16, **sizes, reduction_hidden=32, reduced=32)
    )
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(200):
        images, tokens, answers = bars(32, generator)
        optimizer.zero_grad()
        F.cross_entropy(net(images, tokens), answers).backward()
        optimizer.step()
    images, tokens, answers = bars(300, generator)
    assert (net(images, tokens).argmax(-1) == answers).float().mean() > 0.9


def test_noise_on_grid_features_of_a_wrapped_network() -> None:
    net = ImageMCAN(ConvGrid(FEATURES), little())
    images, tokens = torch.randn(BATCH, 3, 16, 16), inputs()[1]
    likelihood = gfo.MultiLabel(ANSWERS)
    model = gfo.wrap(net, "mc", net.sites, likelihood=likelihood, example=(images, tokens))
    model(images, tokens, y=torch.ones(BATCH, ANSWERS)).total.backward()
    assert all(parameter.grad is not None for parameter in net.encoder.parameters())
    features = net.encoder(images).detach()
    clean, same, noisy = (
        model.predict(x, tokens, samples=5, generator=torch.Generator().manual_seed(0)).samples
        for x in (images, features, features + torch.randn_like(features))
    )
    assert torch.allclose(same, clean, atol=1e-6)
    assert not torch.allclose(noisy, clean, atol=1e-3)


# Wrapping


METHODS = {
    "mc": {},
    "gflowout": {},
    "id-gflowout": {"train_size": 100},
    "combined": {"train_size": 100},
    "concrete": {"train_size": 100},
    "variational": {"train_size": 100},
    "gates": {},
    "masksembles": {},
    "modes": {},
    "contextual": {},
}


@pytest.mark.parametrize("method", METHODS)
def test_every_kind_of_method_wraps_it(method: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, (features, tokens) = little(), inputs(6)
    model = gfo.wrap(
        net,
        method=method,
        sites=net.sites,
        likelihood=gfo.MultiLabel(ANSWERS),
        example=(features[:2], tokens[:2]),
        **METHODS[method],
    )
    assert tuple(site.name for site in model.sites) == net.sites
    assert {(site.units, site.axis, site.rank) for site in model.sites} == {(8, 2, 3)}
    assert model.spec.foldable
    answers = torch.rand(6, ANSWERS).round(decimals=1)
    optimizer = torch.optim.Adam(model.parameter_groups())
    before = [parameter.clone() for parameter in net.parameters()]
    losses = model(features, tokens, y=answers)
    assert torch.isfinite(losses.total)
    losses.total.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is None or torch.isfinite(gradient).all() for gradient in gradients)
    optimizer.step()
    moved = [not torch.equal(old, new) for old, new in zip(before, net.parameters(), strict=True)]
    assert sum(moved) > 0.9 * len(moved)
    drawn = model.predict(features, tokens, samples=6, return_masks=True)
    assert drawn.samples.shape == (6, 6, ANSWERS)
    assert torch.isfinite(drawn.samples).all()
    for mask in drawn.masks:
        assert (mask.flatten(1).unique(dim=0).shape[0]) > 1
    assert drawn.samples.std(0).min() > 0
    seeded = [torch.Generator().manual_seed(3) for _ in range(2)]
    folded = model.predict(features, tokens, samples=6, generator=seeded[0])
    single = model.predict(features, tokens, samples=6, generator=seeded[1], chunk=1)
    assert torch.allclose(folded.samples, single.samples, atol=1e-5)
    gfo.save(model, tmp_path / "model.safetensors")
    loaded = gfo.load(tmp_path / "model.safetensors", little())
    again = loaded.predict(features, tokens, samples=6, generator=seeded[0].manual_seed(3))
    assert torch.allclose(again.samples, folded.samples, atol=1e-6)


def test_masks_of_ones_change_nothing_and_zeros_cut_the_image_off_from_the_words() -> None:
    net, (features, tokens) = little(), inputs()
    likelihood = gfo.MultiLabel(ANSWERS)
    example = (features, tokens)
    model = gfo.wrap(net, "mc", net.sites, likelihood=likelihood, example=example, rescale="none")
    ones = [torch.ones(1, 8) for _ in net.sites]
    assert torch.allclose(model(features, tokens, masks=ones), net(features, tokens), atol=1e-6)
    cut = [torch.zeros(1, 8) if "guided" in name else torch.ones(1, 8) for name in net.sites]
    regions: list[Tensor] = []
    handle = net.reduce_regions.register_forward_hook(lambda m, args, out: regions.append(out))
    model(features, tokens, masks=cut)
    model(features, tokens.where(tokens == 0, 3), masks=cut)
    handle.remove()
    assert torch.equal(regions[0], regions[1])


# Errors


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"vocabulary": 1}, ValueError, "vocabulary must be an integer >= 2, got 1"),
        ({"answers": 0}, ValueError, "answers must be an integer >= 1, got 0"),
        ({"feature_size": 2.5}, TypeError, "feature_size must be an integer >= 1, got 2.5"),
        ({"layers": 0}, ValueError, "layers must be an integer >= 1, got 0"),
        ({"width": 0}, ValueError, "width must be an integer >= 1, got 0"),
        ({"width": 12, "heads": 5}, ValueError, "heads must divide width, which is 12, got 5"),
        ({"hidden": 0}, ValueError, "hidden must be an integer >= 1, got 0"),
        ({"reduced": 0}, ValueError, "reduced must be an integer >= 1, got 0"),
        ({"dropout": 1.0}, ValueError, r"dropout must be a number in \[0, 1\), got 1.0"),
        ({"embeddings": [[1.0]]}, TypeError, "embeddings must be a floating-point .* got list"),
        ({"embeddings": torch.ones(9, 3)}, ValueError, r"embeddings must have shape \[5, .*9, 3"),
        ({"embeddings": torch.ones(5, 3) / 0}, ValueError, "embeddings must be finite"),
        ({"embeddings": torch.ones(5, 3).int()}, TypeError, "got torch.int32"),
    ],
)
def test_rejects_arguments(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        MCAN(**{"vocabulary": 5, "answers": 3, "width": 8, "heads": 2, **arguments})


@pytest.mark.parametrize(
    ("features", "tokens", "error", "words"),
    [
        (torch.ones(2, 6), torch.ones(2, 4).long(), ValueError, r"\[batch, regions, 6\], got \[2"),
        (torch.ones(2, 5, 9), torch.ones(2, 4).long(), ValueError, r"regions, 6\], got \[2, 5, 9"),
        (torch.ones(2, 5, 6), torch.ones(2, 4), TypeError, "tokens must be int64 or int32, got"),
        (torch.ones(2, 5, 6), torch.ones(3, 4).long(), ValueError, r"shape \[2, words\].*\[3, 4"),
        (torch.ones(2, 5, 6), torch.ones(2, 0).long(), ValueError, r"shape \[2, words\].*\[2, 0"),
    ],
)
def test_rejects_inputs(
    features: Tensor, tokens: Tensor, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        little()(features, tokens)


def test_rejects_padding_of_another_kind() -> None:
    features, tokens = inputs()
    with pytest.raises(TypeError, match="region_padding must be a bool tensor, True for padding"):
        little()(features, tokens, region_padding=torch.zeros(BATCH, REGIONS))
    with pytest.raises(ValueError, match=r"token_padding must have shape \[3, 4\], got \[3, 5\]"):
        little()(features, tokens, token_padding=no_padding(3, 5))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: ConvGrid(0), ValueError, "feature_size must be an integer >= 1, got 0"),
        (lambda: ConvGrid(widths=()), TypeError, "widths must be a list of integers"),
        (lambda: ConvGrid(widths=(3, 0)), ValueError, "widths must be an integer >= 1, got 0"),
        (lambda: PatchGrid(30, 8), ValueError, "patch must divide image_size, which is 30, got 8"),
        (lambda: PatchGrid((8, 8, 3)), ValueError, "image_size must be height and width"),
        (lambda: PatchGrid("8"), TypeError, "image_size must be an integer >= 1, got '8'"),
        (lambda: PatchGrid(8)(torch.ones(1, 3, 8, 9)), ValueError, r"\(8, 8\), got \(8, 9\)"),
        (lambda: ConvGrid()(torch.ones(1, 1, 8, 8)), ValueError, r"\[batch, 3, .* got \[1, 1, 8"),
        (lambda: ConvGrid()(torch.ones(1, 3, 8, 8).byte()), TypeError, "got torch.uint8; scale"),
        (lambda: ImageMCAN(ConvGrid(9), little()), ValueError, "encoder gives 9 .* feature_size=6"),
        (lambda: ImageMCAN(little(), ConvGrid(9)), TypeError, "mcan must be an MCAN, got ConvGrid"),
        (lambda: ImageMCAN(len, little()), TypeError, "encoder must be an nn.Module, got builtin"),
        (lambda: feed_forward(4, 0, 4), ValueError, "hidden must be an integer >= 1, got 0"),
    ],
)
def test_image_parts_reject_arguments(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


def test_backbones_need_torch_only() -> None:
    allowed = {"torch", "gflowout", "safetensors"}
    code = (
        "import sys, torch, safetensors.torch; before = set(sys.modules);"
        "import gflowout.backbones;"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    foreign = set(result.stdout.split()) - allowed - set(sys.stdlib_module_names)
    assert not foreign


def test_tokens_outside_the_vocabulary_are_named() -> None:
    net = MCAN.tiny(20, 5, feature_size=16)
    features = torch.randn(2, 3, 16)
    for tokens in ([[1, 20], [2, 3]], [[1, -1], [2, 3]]):
        with pytest.raises(ValueError, match=r"tokens must be in \[0, 19\], the vocabulary"):
            net(features, torch.tensor(tokens))
