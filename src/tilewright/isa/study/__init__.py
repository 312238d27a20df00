"""Looking at programs: profile, debugger, explanations, tuning, claims, reference."""
