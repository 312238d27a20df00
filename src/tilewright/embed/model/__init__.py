"""What the user configures: tables, stacks, limits, knobs; sizes in closed form."""
