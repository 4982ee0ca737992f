"""The legs of a route and the layers of a model: each layer is in a leg, each leg covers a layer, or it is refused."""

import re
from dataclasses import replace

import pytest
from builders import random_layer
from memory_dumps import memory_dump

from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.spec import parse_method
from ecokv_cli.studies.evict import EvictSettings, evict


def layers_of(count):
    """All layers of a model of `count` layers."""
    return [replace(random_layer(index), index=index, layers=count) for index in range(count)]


@pytest.mark.parametrize(("legs", "layers", "wanted"), [
    ("0-4=keydiff,5-=knorm", 7, ["keydiff"] * 5 + ["knorm"] * 2),
    ("0-4=keydiff,5-=knorm", 6, ["keydiff"] * 5 + ["knorm"]),
    ("0-2=keydiff,3-4=knorm", 5, ["keydiff"] * 3 + ["knorm"] * 2),
    ("0=keydiff,1=knorm,2=vnorm", 3, ["keydiff", "knorm", "vnorm"]),
    ("0-=keydiff", 1, ["keydiff"]),
])  # fmt: skip
def test_every_layer_has_the_method_of_its_leg(legs, layers, wanted):
    route = parse_method(f"route[{legs}]")
    assert [route.at(layer).name for layer in layers_of(layers)] == wanted


REFUSED = [
    ("0-4=keydiff,5-=knorm", 5, "'5-=knorm' covers no layer, the model has 5 layers, 0 to 4; leave it out"),
    ("0-4=keydiff,5-6=knorm", 5, "'5-6=knorm' covers no layer, the model has 5 layers, 0 to 4; leave it out"),
    ("0=keydiff,1-=knorm", 1, "'1-=knorm' covers no layer, the model has 1 layer, 0 to 0; leave it out"),
    ("0-6=keydiff", 5, "'0-6=keydiff' goes past the last layer, the model has 5 layers, 0 to 4; write 0-=keydiff"),
    (
        "0-6=keydiff,7-=knorm", 5,
        "'0-6=keydiff' goes past the last layer, the model has 5 layers, 0 to 4; write 0-=keydiff, with no leg after "
        "it",
    ),
    (
        "0-2=keydiff", 5,
        "'0-2=keydiff' ends before the last layer, the model has 5 layers, 0 to 4; write 0-=keydiff, or add a leg "
        "3-=method",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("legs", "layers", "message"), REFUSED)
def test_a_leg_that_does_not_fit_is_refused_in_every_layer_with_the_way_out(legs, layers, message):
    route = parse_method(f"route[{legs}]")
    wanted = re.escape(f"route[{legs}]: {message}") + "$"
    for layer in layers_of(layers):
        for asked in (route.at, route.scores, lambda layer: route.select(layer, 11)):
            with pytest.raises(MethodError, match=wanted):
                asked(layer)


@pytest.mark.parametrize(("legs", "layers", "message"), REFUSED)
def test_what_the_message_says_to_write_fits(legs, layers, message):
    route = parse_method(f"route[{legs}]")
    written = re.search(r"write ([^,]+)", message)
    if written:
        kept = [span.text for span in route.spans[:-1] if span.last < layers]
        route = parse_method(f"route[{','.join([*kept, written[1]])}]")
    else:
        route = replace(route, spans=route.spans[:-1])
    route.require_layers(layers)


def settings_of(spec, layers):
    return EvictSettings((parse_method(spec).with_window(3),), (11,), layers, (0, 1), (layers[0], 0))


def test_the_layers_of_the_model_count_and_not_those_chosen():
    dump = memory_dump(layers=5)
    found = evict([dump], settings_of("route[0-2=snapkv,3-=keydiff]", (1,)))
    assert {row["layer"] for row in found.fidelity} == {1}
    # Layer 1 is covered here too, but the model has no layer 5.
    with pytest.raises(MethodError, match=r"'5-=keydiff.*' covers no layer, the model has 5 layers"):
        evict([dump], settings_of("route[0-4=snapkv,5-=keydiff]", (1,)))


def test_a_route_of_another_depth_is_refused_before_any_layer_is_read():
    chosen = settings_of("route[0-4=snapkv,5-=keydiff]", (0,))
    chosen.require_fits([memory_dump(layers=6, made=())], every=False)
    with pytest.raises(MethodError, match="covers no layer"):
        chosen.require_fits([memory_dump(layers=5, made=())], every=False)
