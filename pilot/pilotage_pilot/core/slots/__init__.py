"""One slot as HTCondor's startd manages it: states, activities, events, and the policy that drives them."""
