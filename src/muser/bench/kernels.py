"""`muser bench kernels`: where the time of a step goes, on the CPU or on a card."""

from typing import Any

from muser import places
from muser.bench.fixture import NAME
from muser.bench.lock import alone
from muser.bench.look import Look, Sides, recorded
from muser.bench.session import Say
from muser.bench.steps import KernelPlan, known_steps


def run_kernels(
    plan: KernelPlan, *, say: Say = lambda line: None, look: Look | None = None
) -> dict[str, Any]:
    """The record of where the steps' time goes; fails and raises as `muser.bench.run_plan` does."""
    from muser.bench import entries, launches

    with alone(places.home()):
        say(f"Reference runs ({plan.reference}).")
        known = known_steps(plan)

        def body(sides: Sides) -> dict[str, Any]:
            if plan.device == launches.CUDA:
                return {"runs": [launches.timed_run(plan, known, sides, say)]}
            runs = (entries.timed_run(plan, known, count, sides, say) for count in plan.threads)
            return {"runs": list(runs)}

        record = recorded("kernels", plan.model, body, look)
    return {**record, "fixture": NAME, "repetitions": plan.plays}
