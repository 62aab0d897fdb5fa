"""Nodes, edges, the rules of a graph, and its forms as JSON and DOT."""
