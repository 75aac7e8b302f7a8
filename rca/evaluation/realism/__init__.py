"""How far simulated windows are from real ones: effect sizes, features, a discriminator, operation traces."""
