"""Writes embed_optimizers.npz: what jax-tpu-embedding's own update functions make of 1,000 random steps.

    PYTHON tests/data/make_embed_optimizers.py        an environment with jax-tpu-embedding 0.2.0 (Python 3.12)

Each optimizer's primitive is lowered for TPU. The private function in that StableHLO, which the SparseCore runs on
every touched row, is evaluated one operation at a time on CPU, each rounded to float32. At the recorded steps
StableHLO's reference interpreter evaluates it too: the same bits, or the next ones behind a power. Hyper-parameters are
what the optimizer's spec gives for a traced step, one operation at a time too.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec as specs
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

ROOT = Path(__file__).resolve().parent
ROWS, WIDTH, STEPS, SEED = 16, 8, 1000, 20240
RECORDED = (1, 10, 100, 1000)
SIZE = ROWS * WIDTH


def falling(step):
    """The schedule of the cases called scheduled."""
    return 0.2 / (1.0 + 0.01 * step)


def cases():
    """name -> (our constructor, its arguments, the spec, bounds of the rows or None)."""
    made = {}
    for kind, rate in (("constant", 0.05), ("scheduled", falling)):

        def add(name, ours, spec, bounds=None, rate=rate, kind=kind, **other):
            renamed = {spec_name(ours, key): value for key, value in other.items()}
            made[f"{name}, {kind}"] = ours, other, spec(rate, **renamed), bounds

        add("sgd", "SGD", specs.SGDOptimizerSpec)
        add("adagrad", "Adagrad", specs.AdagradOptimizerSpec)
        add("adam", "Adam", specs.AdamOptimizerSpec)
        add("adam with others", "Adam", specs.AdamOptimizerSpec, b1=0.8, b2=0.99, epsilon=1e-3)
        add("momentum", "AdagradMomentum", specs.AdagradMomentumOptimizerSpec)
        nesterov = {"momentum": 0.7, "beta2": 0.9, "exponent": 3.0, "use_nesterov": True, "initial_momentum": 0.25}
        add("nesterov", "AdagradMomentum", specs.AdagradMomentumOptimizerSpec, **nesterov)
        add("ftrl", "FTRL", specs.FTRLOptimizerSpec)
        strong = {"learning_rate_power": -0.6, "l1_regularization": 0.3, "l2_regularization": 0.2, "beta": 0.5}
        add("ftrl with others", "FTRL", specs.FTRLOptimizerSpec, **strong, initial_linear=0.5)
        add("ftrl times rate", "FTRL", specs.FTRLOptimizerSpec, **strong, multiply_linear_by_learning_rate=True)
        add("laprop", "LaProp", specs.LaPropOptimizerSpec)
        add("laprop with others", "LaProp", specs.LaPropOptimizerSpec, b1=0.8, b2=0.999, epsilon=1e-8)
        add("f2a", "F2A", specs.F2AOptimizerSpec)
        add("f2a with others", "F2A", specs.F2AOptimizerSpec, rho=0.9, l1_regularization=0.01, l2_regularization=0.02)
        add("clipped adam", "Adam", specs.AdamOptimizerSpec, bounds=(-0.5, 1.25))
        add("clipped ftrl", "FTRL", specs.FTRLOptimizerSpec, bounds=(None, 0.25))
    return made


def spec_name(ours, name):
    """A field of ours -> the spec's argument."""
    if ours in ("Adam", "LaProp"):
        own = {"Adam": {"b1": "beta_1", "b2": "beta_2"}, "LaProp": {"epsilon": "eps"}}[ours]
        return own.get(name, name)
    suffix = "_strength" if name.endswith("regularization") else "_value" if name.startswith("initial_") else ""
    return name + suffix


def update_function(spec, bounds):
    """The StableHLO function that updates one row of SIZE floats, and how many slots it takes."""
    slots, hyper = len(spec.slot_variables_initializers()), spec.get_hyperparameters(jnp.int32(0))
    times_rate = getattr(spec, "multiply_linear_by_learning_rate", None)
    params = {} if times_rate is None else {"multiply_linear_by_learning_rate": times_rate}
    params |= {"min_value": bounds[0], "max_value": bounds[1]} if bounds else {}

    def call(*args):
        sizes = {"max_ids_per_partition": 8, "max_unique_ids_per_partition": 8, "sharding_strategy": 1}
        primitive = spec.get_optimizer_primitive()
        return primitive.bind(*args, **sizes, computation_name="row_update", enable_minibatching=False, **params)

    def shaped(dtype, *shape):
        return jax.ShapeDtypeStruct(shape, dtype)

    table, ids = shaped(jnp.float32, 16, SIZE), shaped(jnp.int32, 64)
    buffers = [shaped(jnp.int32, 8), ids, ids, shaped(jnp.float32, 64), shaped(jnp.int32)]
    arguments = [*buffers, *[table] * (1 + slots), table, *[shaped(h.dtype) for h in hyper]]
    text = jax.jit(call).trace(*arguments).lower(lowering_platforms=("tpu",)).as_text()
    return re.search(r"func.func private @row_update.*?\n  }\n", text, re.DOTALL)[0], slots


OPERATIONS = {
    "add": jnp.add,
    "clamp": jax.lax.clamp,
    "divide": jnp.divide,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "multiply": jnp.multiply,
    "negate": jnp.negative,
    "power": jax.lax.pow,
    "select": jnp.where,
    "sign": jnp.sign,
    "sqrt": jnp.sqrt,
    "subtract": jnp.subtract,
    "broadcast_in_dim": lambda value: jnp.full((1, SIZE), value),
}


def evaluate(function, arguments):
    """The function's results, one operation after the other."""
    values = {f"%arg{i}": value for i, value in enumerate(arguments)}
    for line in function.splitlines()[1:]:
        words = line.split()
        if words[0] == "return":
            return values[words[1]]
        if len(words) < 3:
            continue
        name, operation = words[0], words[2].removeprefix("stablehlo.")
        if operation == "constant":
            number = re.search(r"dense<(.*?)>", line)[1]
            exact = np.array([int(number, 16)], np.uint32).view(np.float32)[0] if "x" in number else np.float32(number)
            values[name] = jnp.asarray(exact) if "tensor<f32>" in line else jnp.full((1, SIZE), exact)
            continue
        operands = [values[operand] for operand in re.findall(r"%\w+", line.split("=", 1)[1])]
        if operation == "tuple":
            values[name] = operands
        elif operation == "compare":
            assert " EQ, " in line, line
            values[name] = operands[0] == operands[1]
        else:
            values[name] = OPERATIONS[operation](*operands)
    raise AssertionError("no return")


def interpreted(function, arguments):
    """The same by StableHLO's reference interpreter, which knows no tuples."""
    text = function.replace("private @row_update", "public @main")
    text = re.sub(r"-> tuple<(.*)> {", r"-> (\1) {", text)
    inside, types = re.search(r"stablehlo.tuple (.*) : tuple<(.*)>", text).groups()
    text = re.sub(r"    %\w+ = stablehlo.tuple .*\n    return .*", f"    return {inside} : {types}", text)
    with mlir.make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse("module {" + text + "}")
        dense = [ir.DenseElementsAttr.get(np.asarray(a), type=element_type(a)) for a in arguments]
        return [np.array(value) for value in stablehlo.eval_module(module, dense)]


def element_type(value):
    return ir.IntegerType.get_signless(1) if value.dtype == bool else None


def inputs():
    """Rows to start from and, for every step, gradients of all sizes and which rows are touched."""
    random = np.random.RandomState(SEED)
    rows = random.standard_normal((ROWS, WIDTH)).astype(np.float32)
    for step in range(-1, STEPS):
        if step < 0:
            yield rows
            continue
        sizes = 10 ** random.uniform(-3, 1, (ROWS, 1))
        gradient = (random.standard_normal((ROWS, WIDTH)) * sizes).astype(np.float32)
        gradient[random.uniform(size=gradient.shape) < 0.1] = 0
        yield gradient, random.uniform(size=ROWS) < 0.7


def run(spec, bounds):
    """{step: [rows, slots...]} and {step: hyper-parameters}."""
    function, slots = update_function(spec, bounds)
    stream = inputs()
    starts = [float(make(jax.random.key(0), (1,), jnp.float32)[0]) for make in spec.slot_variables_initializers()]
    state = [next(stream), *(np.full((ROWS, WIDTH), start, np.float32) for start in starts)]
    recorded, rates = {}, {}
    of_step = jax.make_jaxpr(spec.get_hyperparameters)(jnp.int32(0))
    for step, (gradient, touched) in enumerate(stream):
        hyper = [np.asarray(h) for h in jax.core.eval_jaxpr(of_step.jaxpr, of_step.consts, jnp.int32(step))]
        arguments = [a.reshape(1, SIZE) for a in (gradient, *state)] + [np.full((1, SIZE), h) for h in hyper]
        new = [np.asarray(value) for value in evaluate(function, arguments)]
        if step + 1 in RECORDED:
            compare(new, interpreted(function, arguments), "power" in function)
            rates[step + 1] = np.array([float(h) for h in hyper], np.float32)
        state = [np.where(touched[:, None], a.reshape(ROWS, WIDTH), old) for a, old in zip(new, state)]
        if step + 1 in RECORDED:
            recorded[step + 1] = state
    assert slots == len(state) - 1
    return recorded, rates


def compare(ours, reference, powers):
    for a, b in zip(ours, reference):
        scale = np.maximum(np.abs(b), 1e-30)
        worst = float(np.max(np.abs(a - b) / scale))
        assert worst <= (1e-6 if powers else 0), worst


def main():
    arrays, table = {}, {}
    for name, (ours, other, spec, bounds) in cases().items():
        recorded, rates = run(spec, bounds)
        slots = spec.slot_variables_initializers()._fields
        table[name] = {"optimizer": ours, "arguments": other, "bounds": bounds, "slots": slots}
        for step in RECORDED:
            arrays[f"{name}/{step}"] = np.stack(recorded[step])
            arrays[f"{name}/{step}/hyperparameters"] = rates[step]
        print(name, [float(np.abs(part).max()) for part in recorded[STEPS]])
    about = {"rows": ROWS, "width": WIDTH, "steps": STEPS, "seed": SEED, "recorded": RECORDED, "cases": table}
    np.savez_compressed(ROOT / "embed_optimizers.npz", about=json.dumps(about), **arrays)


if __name__ == "__main__":
    main()
