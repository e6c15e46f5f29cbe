"""Is it the optimum yet?"""
